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

GUEST_SLOTS = 1024
"""Guests spread over this many lanes by a hash of their peer id."""

_ROUNDS = 8
_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True)
class Permutation:
    """The bijection of [0, size) that `key` names, computed one place at a time. `size` at least 1.

    A Feistel network is a bijection of the numbers of an even count of bits whatever its round
    function is; walking the cycle until the number falls below `size` (at most four times as small
    as that range) makes it one of [0, size) (Black and Rogaway 2002, "Ciphers with arbitrary finite
    domains"). Needs no memory, where a shuffled list of a large corpus would need gigabytes.
    """

    size: int
    round_keys: tuple[int, ...]
    half_bits: int

    @classmethod
    def keyed(cls, size: int, key: str) -> "Permutation":
        digest = hashlib.sha512(key.encode()).digest()
        keys = tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "big") for i in range(_ROUNDS))
        return cls(size, keys, max(1, ((size - 1).bit_length() + 1) // 2))

    def __call__(self, place: int) -> int:
        """What stands at `place`."""
        assert 0 <= place < self.size, f"place {place} is outside of [0, {self.size})"
        value = self._scramble(place)
        while value >= self.size:
            value = self._scramble(value)
        return value

    def _scramble(self, value: int) -> int:
        mask = (1 << self.half_bits) - 1
        left, right = value >> self.half_bits, value & mask
        for key in self.round_keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        return left << self.half_bits | right


def _mixed(value: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK_64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK_64
    return value ^ (value >> 31)


@dataclass(frozen=True)
class Sampler:
    """The order of `windows` training windows under `seed`."""

    windows: int
    seed: int

    def window_at(self, position: int) -> int:
        """The window that position shows."""
        epoch, place = divmod(position, self.windows)
        return _epoch_order(self.windows, self.seed, epoch)(place)

    def draw_position(self, cursor: int, members: Sequence[str], peer_id: str, k: int) -> int:
        """The position of a peer's k-th draw (from 0) of the round that starts at `cursor`.

        `members` are the peers the samples are dealt to, in their agreed order. A peer that is
        not among them draws as a guest.
        """
        if peer_id in members:
            return cursor + members.index(peer_id) + len(members) * k
        return guest_position(cursor, peer_id, k, self.windows)


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
