"""Who trains on which sample: pure functions of what all peers agree on.

*Positions* count samples from the start of the run; each epoch has a fresh random order. A round
deals positions like cards: from the agreed cursor on, member r of n takes every n-th. Nobody has to
be told, and no two members ever train on the same sample of an epoch, unless one drew ahead and the
members changed.

The order suits a text that arrives in *pieces*, stretches of the token file of one size, and is
kept within a cap. An epoch goes through the pieces in a random order, BLOCK_PIECES at a time, and
through all windows of such a block in a random order. So positions that follow each other need one
block, two where it ends, and a text of one block is shuffled as a whole. Of the last piece, which
may be short, the windows come in the last block. Guests need the epoch's last blocks besides.

Several texts are mixed by weights. Each has an order and epochs of its own, and every *cycle*, as
many positions as the weights' sum, shows of each text as many windows as its weight says.
"""

import hashlib
import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

GUEST_SLOTS = 1024
"""Guests spread over this many lanes by a hash of their peer id."""

BLOCK_PIECES = 64
"""Pieces whose windows are shuffled together: 256 MiB of tokens, with pieces of 4 MiB."""
_LOOK_AHEAD = 1024
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
class Order:
    """Of the `windows` of one text under `seed`. Positions here are its own."""

    windows: int
    piece_windows: int
    """So many lie in a piece, one piece after the other; in the last one there may be fewer."""
    seed: int

    def window_at(self, position: int) -> int:
        """The window that position shows."""
        epoch, place = divmod(position, self.windows)
        block, place = divmod(place, self._block_windows)
        order = _shuffled(self._windows_in(block), f"train:{self.seed}:{epoch}:{block}")
        piece, window = divmod(order(place), self.piece_windows)
        return self._piece_at(epoch, block * BLOCK_PIECES + piece) * self.piece_windows + window

    def pieces_from(self, position: int) -> Iterator[tuple[int, int]]:
        """(a position that needs it, piece) of every piece once, as positions from this one on need
        them; of a block those that its next thousand windows do not need come last."""
        seen: set[int] = set()
        while len(seen) < -(-self.windows // self.piece_windows):
            epoch, place = divmod(position, self.windows)
            block = place // self._block_windows
            end = position - place + block * self._block_windows + self._windows_in(block)
            near = range(position, min(end, position + _LOOK_AHEAD))
            needed = [(at, self.window_at(at) // self.piece_windows) for at in near]
            if near.stop < end:
                pieces = -(-self._windows_in(block) // self.piece_windows)
                places = range(block * BLOCK_PIECES, block * BLOCK_PIECES + pieces)
                needed += [(near.stop, self._piece_at(epoch, place)) for place in places]
            for at, piece in needed:
                if piece not in seen:
                    seen.add(piece)
                    yield at, piece
            position = end

    @property
    def _block_windows(self) -> int:
        return BLOCK_PIECES * self.piece_windows

    def _windows_in(self, block: int) -> int:
        return min(self._block_windows, self.windows - block * self._block_windows)

    def _piece_at(self, epoch: int, place: int) -> int:
        """Of all pieces in the epoch's order; a short one is the last."""
        whole = self.windows // self.piece_windows
        return _shuffled(whole, f"pieces:{self.seed}:{epoch}")(place) if place < whole else whole


@dataclass(frozen=True)
class Sampler:
    """Which window of which text a position of the run shows."""

    orders: tuple[Order, ...]
    weights: tuple[int, ...] = (1,)
    """Windows of each text in a cycle; each at least 1."""
    seed: int = 0

    @property
    def cycle(self) -> int:
        return sum(self.weights)

    def window_at(self, position: int) -> tuple[int, int]:
        """(text, its window). Within a cycle the texts are shuffled: if they took turns, a member
        that takes every other position could always meet the same one."""
        cycle, drawn = divmod(position, self.cycle)
        if len(self.orders) > 1:
            drawn = _shuffled(self.cycle, f"mixture:{self.seed}:{cycle}")(drawn)
        text = bisect_right(list(accumulate(self.weights)), drawn)
        place = drawn - sum(self.weights[:text])
        return text, self.orders[text].window_at(cycle * self.weights[text] + place)

    def pieces_from(self, position: int) -> Iterator[tuple[int, int]]:
        """(text, piece), each once, as positions from this one's cycle on need them."""
        needed = heapq.merge(*(self._needed(text, position) for text in range(len(self.orders))))
        return ((text, piece) for _, text, piece in needed)

    def _needed(self, text: int, position: int) -> Iterator[tuple[float, int, int]]:
        """(in which cycle, text, piece)"""
        weight = self.weights[text]
        for at, piece in self.orders[text].pieces_from(position // self.cycle * weight):
            yield at / weight, text, piece

    def epochs(self, position: int) -> list[float]:
        """How often the positions before this one have shown each text."""
        dealt = (position * weight / self.cycle for weight in self.weights)
        return [each / order.windows for each, order in zip(dealt, self.orders, strict=True)]

    def draw_position(self, cursor: int, members: Sequence[str], peer_id: str, k: int) -> int:
        """The position of a peer's k-th draw (from 0) of the round that starts at `cursor`.

        `members` are the peers the samples are dealt to, in their agreed order. A peer that is
        not among them draws as a guest.
        """
        if peer_id in members:
            return cursor + members.index(peer_id) + len(members) * k
        return guest_position(cursor, peer_id, k, self.epoch)

    @property
    def epoch(self) -> int:
        """Positions until every text was shown as a whole, from the start of the run."""
        texts = zip(self.orders, self.weights, strict=True)
        return self.cycle * max(-(-order.windows // weight) for order, weight in texts)


def guest_position(cursor: int, peer_id: str, k: int, epoch: int) -> int:
    """The k-th draw of a peer that no samples are dealt to yet.

    It comes from the far end of the cursor's epoch, which the members reach last, so that a guest
    rarely repeats what a member trains on; guests are kept apart by their slots.
    """
    start = cursor - cursor % epoch
    slot = int.from_bytes(hashlib.sha256(peer_id.encode()).digest()[:8], "big") % GUEST_SLOTS
    return start + epoch - 1 - (slot + GUEST_SLOTS * k) % epoch


@lru_cache(maxsize=64)
def _shuffled(size: int, key: str) -> Permutation:
    return Permutation.keyed(size, key)
