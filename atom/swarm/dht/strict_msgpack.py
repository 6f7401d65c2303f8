"""Strict decoder of the MessagePack values that DHT nodes send each other.

hivemind's own decoder runs before a signature can be checked, and it is recursive: its extension
type for tuples holds MessagePack again, so 1.5 kB of nested tuples overflow the stack of a process,
and each unknown extension type writes a line into the log. Atom needs two shapes only:

    scalar        nil, bool, int, float, text, bytes
    dictionary    extension 0x50: [maximum size, latest end, [[subkey, value, end], ...]]

This decoder reads these two in one pass, without recursion, and refuses all other bytes. It
does not call the msgpack library: each bound is visible here. An alternative was to call msgpack
with its length limits; it still parses nested arrays of any shape before the caller sees them.
"""

import math
import struct
from typing import Any

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason

MAX_VALUE_BYTES = 2 << 20
"""Bytes of one encoded value. libp2p's daemon carries no longer message."""
MAX_ITEMS = 16_384
"""Items of one dictionary. Decoding takes a few microseconds per item, so under 0.1 s in all."""
MAX_SUBKEY_CHARACTERS = 128
"""Characters of a subkey, which is a peer id of 52 characters."""
DICTIONARY_CODE = 0x50
"""Extension type by which hivemind marks a dictionary."""

Scalar = None | bool | int | float | str | bytes
Item = tuple[str, bytes, float]
"""Subkey, encoded value, and Unix time in seconds at which the record ends."""

_NUMBERS = {0xCA + index: struct.Struct(">" + code) for index, code in enumerate("fdBHIQbhiq")}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_EXTENSION = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_TEXT = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAY = {0xDC: 2, 0xDD: 4}
"""Marker byte, and the number of bytes that hold the length."""
_ARRAY_OF_THREE = 0x93


class _Reader:
    """Position in a byte string that is read once from front to end."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes.

        Raises:
            PeerRefused: Fewer bytes are left.
        """
        taken = self._raw[self._at : self._at + count]
        if len(taken) != count:
            raise malformed("a value ends early")
        self._at += count
        return taken

    def number(self, size_bytes: int) -> int:
        return int.from_bytes(self.take(size_bytes), "big")

    def expect(self, due: int, size_bytes: int = 1) -> None:
        """Skip one number.

        Raises:
            PeerRefused: The number is not the expected one.
        """
        if (found := self.number(size_bytes)) != due:
            raise malformed(f"{found:#x} instead of {due:#x}")

    def left(self) -> int:
        """Return the number of bytes that were not read."""
        return len(self._raw) - self._at

    def scalar(self) -> Scalar:
        """Return the next value.

        Raises:
            PeerRefused: The value is an array, a map or an extension.
        """
        marker = self.number(1)
        if marker < 0x80 or marker >= 0xE0:
            return marker if marker < 0x80 else marker - 0x100
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if number := _NUMBERS.get(marker):
            return number.unpack(self.take(number.size))[0]  # type: ignore[no-any-return]
        if marker in _BYTES:
            return self.take(self.number(_BYTES[marker]))
        if 0xA0 <= marker < 0xC0 or marker in _TEXT:
            return self.take(self._count(marker, 0xA0, _TEXT)).decode(errors="replace")
        raise malformed(f"type {marker:#x} is not allowed in a value")

    def dictionary(self) -> list[Item]:
        """Return the items of a dictionary. Skips items that can be no signed record."""
        size_bytes = _EXTENSION[self.number(1)]
        self.expect(self.left() - size_bytes - 1, size_bytes)
        self.expect(DICTIONARY_CODE)
        self.expect(_ARRAY_OF_THREE)
        self.scalar(), self.scalar()
        marker = self.number(1)
        count = self._count(marker, 0x90, _ARRAY)
        if (marker not in _ARRAY and marker >> 4 != 9) or count > MAX_ITEMS:
            raise PeerRefused(Reason.TOO_LARGE, f"type {marker:#x} with {count} items")
        return [item for item in (self._item() for _ in range(count)) if _may_be_a_record(item)]

    def _item(self) -> Any:
        self.expect(_ARRAY_OF_THREE)
        return self.scalar(), self.scalar(), self.scalar()

    def _count(self, marker: int, shortest: int, lengths: dict[int, int]) -> int:
        return self.number(lengths[marker]) if marker in lengths else marker - shortest


def _may_be_a_record(item: tuple[Scalar, Scalar, Scalar]) -> bool:
    subkey, value, end = item
    is_named = isinstance(subkey, str) and len(subkey) <= MAX_SUBKEY_CHARACTERS
    return is_named and isinstance(value, bytes) and isinstance(end, float) and math.isfinite(end)


def malformed(detail: str) -> PeerRefused:
    """Return the refusal of bytes that are no message of the DHT."""
    return PeerRefused(Reason.MALFORMED, detail)


def decode(raw: bytes) -> Scalar | list[Item]:
    """Decode one value that a stranger sent.

    Args:
        raw: the encoded value, at most MAX_VALUE_BYTES.

    Returns:
        The scalar, or the items of a dictionary in the order in which they were sent.

    Raises:
        PeerRefused: the bytes are too many, or not exactly one scalar or one dictionary.
    """
    if len(raw) > MAX_VALUE_BYTES:
        raise PeerRefused(Reason.TOO_LARGE, f"a value of {len(raw)} bytes")
    reader = _Reader(raw)
    value = reader.dictionary() if raw and raw[0] in _EXTENSION else reader.scalar()
    if reader.left():
        raise malformed("extra bytes after the value")
    return value
