"""Who trains on which sample: pure functions of what all peers agree on.

*Positions* count samples from the start of the run. Position p shows window `permutation(p mod N)`
of epoch `p div N`, with a fresh random order per epoch. A round deals positions like cards: from
the agreed cursor on, member r of n takes every n-th. Nobody has to be told, and no two
members ever train on the same sample of an epoch, unless one drew ahead and the members changed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from atom.models.data.permutation import Permutation

GUEST_SLOTS = 1024
"""Guests spread over this many lanes by a hash of their peer id."""


@dataclass(frozen=True)
class Sampler:
    """The order of `windows` training windows under `seed`."""

    windows: int
    seed: int

    def window_at(self, position: int) -> int:
        """The window that position shows. Raises: ValueError for a negative position."""
        if position < 0:
            raise ValueError(f"position {position} is before the start of the run")
        epoch, place = divmod(position, self.windows)
        return _epoch_order(self.windows, self.seed, epoch)(place)

    def draw_position(self, cursor: int, members: Sequence[str], peer_id: str, k: int) -> int:
        """The position of a peer's k-th draw (from 0) of the round that starts at `cursor`.

        `members` are the peers the samples are dealt to, in their agreed order. A peer that is
        not among them draws as a guest.
        """
        if peer_id in members:
            return member_position(cursor, members.index(peer_id), len(members), k)
        return guest_position(cursor, peer_id, k, self.windows)


def member_position(cursor: int, rank: int, members: int, k: int) -> int:
    """The k-th draw of member `rank` of `members`.

    Raises: ValueError if such a rank cannot be.
    """
    if not 0 <= rank < members:
        raise ValueError(f"rank {rank} of {members} members")
    return cursor + rank + members * k


def guest_position(cursor: int, peer_id: str, k: int, windows: int) -> int:
    """The k-th draw of a peer that no samples are dealt to yet.

    It comes from the far end of the cursor's epoch, which the members reach last, so that a guest
    rarely repeats what a member trains on; guests are kept apart by their slots.
    """
    start = cursor - cursor % windows
    slot = int.from_bytes(hashlib.sha256(peer_id.encode()).digest()[:8], "big") % GUEST_SLOTS
    return start + windows - 1 - (slot + GUEST_SLOTS * k) % windows


@lru_cache(maxsize=16)
def _epoch_order(windows: int, seed: int, epoch: int) -> Permutation:
    return Permutation.keyed(windows, f"train:{seed}:{epoch}")
