"""Assignment of samples to peers: pure functions of values that all peers agree on.

*Positions* count samples from the start of the run; each epoch has a fresh random order. A round
deals positions like cards: from the agreed cursor on, member r of n takes every n-th. No messages
are needed, and no two members train on the same sample of an epoch, unless a member had drawn
samples in advance when the members changed.

The order suits a text that arrives in *pieces* (equal stretches of the token file) and is kept on
disk within a limit. An epoch visits the pieces in a random order, grouped into blocks of
BLOCK_PIECES, and all windows of a block in a random order. So consecutive positions need one block,
or two at a block's end, and a text of one block is shuffled as a whole. The windows of the last
piece, which may be short, come in the last block. Guests also need the epoch's last blocks.

Several texts are mixed by weight. Each text has its own order and epochs. In every *cycle*, whose
length is the sum of the weights, each text contributes as many windows as its weight.
"""

import hashlib
import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

GUEST_SLOTS = 1024
"""Number of slots among which guests are distributed by a hash of their peer id."""

BLOCK_PIECES = 64
"""Number of pieces whose windows are shuffled together: 256 MiB of tokens with 4 MiB pieces."""
_LOOK_AHEAD = 1024
_ROUNDS = 8
_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True)
class Permutation:
    """Pseudo-random permutation of [0, size), computed one element at a time; `size` is at least 1.

    A Feistel network permutes all numbers of an even number of bits, whatever its round function.
    Repeating it until the result falls below `size` (at least a quarter of that range) restricts it
    to a permutation of [0, size) (Black and Rogaway 2002, "Ciphers with arbitrary finite domains").
    It needs no memory, whereas a shuffled list for a large corpus would need gigabytes.
    """

    size: int
    round_keys: tuple[int, ...]
    half_bits: int

    @classmethod
    def keyed(cls, size: int, key: str) -> "Permutation":
        """Return the permutation of [0, size) that `key` determines."""
        digest = hashlib.sha512(key.encode()).digest()
        keys = tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "big") for i in range(_ROUNDS))
        return cls(size, keys, max(1, ((size - 1).bit_length() + 1) // 2))

    def __call__(self, place: int) -> int:
        """Return the element at `place`, from 0 to size - 1."""
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
    """Apply the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK_64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK_64
    return value ^ (value >> 31)


@dataclass(frozen=True)
class Order:
    """Order in which one text's windows are trained on. Its positions count this text's windows."""

    windows: int
    """Number of windows in the text."""
    piece_windows: int
    """Number of windows per piece; the last piece may have fewer."""
    seed: int

    def window_at(self, position: int) -> int:
        """Return the number of the window at a position of this text."""
        epoch, place = divmod(position, self.windows)
        block, place = divmod(place, self._block_windows)
        order = _shuffled(self._windows_in(block), f"train:{self.seed}:{epoch}:{block}")
        piece, window = divmod(order(place), self.piece_windows)
        return self._piece_at(epoch, block * BLOCK_PIECES + piece) * self.piece_windows + window

    def pieces_from(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield (a position that needs the piece, piece) for every piece once, in order of need.

        The order starts from `position`. Of each block, the pieces that its next _LOOK_AHEAD
        windows do not need come last.
        """
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
        """Return the piece at a place of the epoch's order, in which a short piece is the last."""
        whole = self.windows // self.piece_windows
        return _shuffled(whole, f"pieces:{self.seed}:{epoch}")(place) if place < whole else whole


@dataclass(frozen=True)
class Sampler:
    """Mapping from positions of the run to windows of its texts."""

    orders: tuple[Order, ...]
    """Order of each text to train on."""
    weights: tuple[int, ...] = (1,)
    """Number of windows of each text per cycle; each at least 1."""
    seed: int = 0

    @property
    def cycle(self) -> int:
        """Number of positions per cycle of the mixture: the sum of the texts' weights."""
        return sum(self.weights)

    def window_at(self, position: int) -> tuple[int, int]:
        """Return (text, window in it) at a position of the run.

        The texts are shuffled within a cycle: if they took turns, a member that takes every second
        position might always get the same text.
        """
        cycle, drawn = divmod(position, self.cycle)
        if len(self.orders) > 1:
            drawn = _shuffled(self.cycle, f"mixture:{self.seed}:{cycle}")(drawn)
        text = bisect_right(list(accumulate(self.weights)), drawn)
        place = drawn - sum(self.weights[:text])
        return text, self.orders[text].window_at(cycle * self.weights[text] + place)

    def pieces_from(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield (text, piece) for every piece once, in order of need.

        The order starts from the cycle that contains `position` of the run.
        """
        needed = heapq.merge(*(self._needed(text, position) for text in range(len(self.orders))))
        return ((text, piece) for _, text, piece in needed)

    def _needed(self, text: int, position: int) -> Iterator[tuple[float, int, int]]:
        """Yield (fractional number of the cycle that needs it, text, piece) for a text's pieces."""
        weight = self.weights[text]
        for at, piece in self.orders[text].pieces_from(position // self.cycle * weight):
            yield at / weight, text, piece

    def epochs(self, position: int) -> list[float]:
        """Return, for each text, its number of epochs before this position of the run."""
        dealt = (position * weight / self.cycle for weight in self.weights)
        return [each / order.windows for each, order in zip(dealt, self.orders, strict=True)]

    def draw_position(self, cursor: int, members: Sequence[str], peer_id: str, k: int) -> int:
        """Return the position of a peer's k-th draw (from 0) of the round that starts at `cursor`.

        Args:
            cursor: position at which the round starts.
            members: ids of the peers to which samples are dealt, in their agreed order. A peer that
                is not among them draws as a guest.
            peer_id: the peer that draws.
            k: number of the draw within the round, from 0.
        """
        if peer_id in members:
            return cursor + members.index(peer_id) + len(members) * k
        return guest_position(cursor, peer_id, k, self.epoch)

    @property
    def epoch(self) -> int:
        """Number of positions after which every text has been shown completely at least once."""
        texts = zip(self.orders, self.weights, strict=True)
        return self.cycle * max(-(-order.windows // weight) for order, weight in texts)


def guest_position(cursor: int, peer_id: str, k: int, epoch: int) -> int:
    """Return the position of the k-th draw of a peer to which no samples are dealt yet.

    Guests draw backwards from the end of the cursor's epoch, which the members reach last, so they
    rarely repeat a member's sample. Guests start at different slots, unless their hashes collide.

    Args:
        cursor: position at which the round starts.
        peer_id: the guest.
        k: number of the draw within the round, from 0.
        epoch: number of positions per epoch (`Sampler.epoch`).
    """
    start = cursor - cursor % epoch
    slot = int.from_bytes(hashlib.sha256(peer_id.encode()).digest()[:8], "big") % GUEST_SLOTS
    return start + epoch - 1 - (slot + GUEST_SLOTS * k) % epoch


@lru_cache(maxsize=64)
def _shuffled(size: int, key: str) -> Permutation:
    return Permutation.keyed(size, key)
