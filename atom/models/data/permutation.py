"""A random order of [0, size), computed one place at a time.

A Feistel network is a bijection of the numbers of an even count of bits whatever its round
function is; walking the cycle until the number falls below `size` (at most four times as small
as that range) makes it one of [0, size) (Black and Rogaway 2002, "Ciphers with arbitrary finite
domains"). Needs no memory, where a shuffled list of a large corpus would need gigabytes.
"""

import hashlib
from dataclasses import dataclass

_ROUNDS = 8
_MASK_64 = (1 << 64) - 1


@dataclass(frozen=True)
class Permutation:
    """The bijection of [0, size) that `key` names. `size` at least 1."""

    size: int
    round_keys: tuple[int, ...]
    half_bits: int

    @classmethod
    def keyed(cls, size: int, key: str) -> "Permutation":
        """Raises: ValueError if there is nothing to permute."""
        if size < 1:
            raise ValueError(f"cannot permute {size} items")
        digest = hashlib.sha512(key.encode()).digest()
        keys = tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "big") for i in range(_ROUNDS))
        return cls(size, keys, max(1, ((size - 1).bit_length() + 1) // 2))

    def __call__(self, place: int) -> int:
        """What stands at `place`. Raises: IndexError outside of [0, size)."""
        if not 0 <= place < self.size:
            raise IndexError(f"place {place} is outside of [0, {self.size})")
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
