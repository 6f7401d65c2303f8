"""Text for people: quantities with units, such as "400 Mbit/s", and safe text of strangers."""

import re
from collections.abc import Mapping
from functools import partial

_BYTES = {
    "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_BITS_PER_S = {
    "bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9,
}  # fmt: skip
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_LIMIT = 2.0**62
"""Largest accepted quantity: counts of bytes or bits then fit a signed 64-bit integer."""
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/%]+)\s*")


def _parse(units: Mapping[str, float], text: str) -> float:
    """Convert a quantity to the base unit.

    Args:
        units: accepted unit → its size in base units.
        text: a number and a unit, such as "8 GiB".

    Raises:
        ValueError: malformed, too large, or with an unknown unit; it names the accepted units.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not a quantity with one of the units {', '.join(units)}")
    quantity = float(match[1]) * units[match[2]]
    if quantity > _LIMIT:
        raise ValueError(f"{text!r} is too large: at most 2**62 of its base unit")
    return quantity


def parse_bytes(text: str) -> int:
    """Convert a size such as "8 GiB" to bytes (8589934592).

    Raises:
        ValueError: not a size; it names the accepted units.
    """
    return int(_parse(_BYTES, text))


parse_bits_per_s = partial(_parse, _BITS_PER_S)
parse_seconds = partial(_parse, _SECONDS)
parse_share = partial(_parse, {"%": 0.01})
"""Functions that convert "400 Mbit/s" to bits per second, "2.5 s" to seconds, "1 %" to 0.01.

Raises:
    ValueError: not such a quantity; it names the accepted units.
"""


def format_bytes(count: float) -> str:
    """Format a number of bytes for people, in decimal units: 8589934592 → "8.6 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Format a duration for people: 8280.0 → "2.3 h", 90.0 → "90 s", 0.012 → "12 ms"."""
    for unit, length_s in ("days", 86400.0), ("h", 3600.0), ("min", 60.0):
        if seconds >= 2 * length_s:
            count = round(seconds / length_s, 1)
            return f"{count:,.{int(count < 10 and count % 1 > 0)}f} {unit}"
    for unit, length_s in ("s", 1.0), ("ms", 1e-3):
        if seconds >= length_s or not seconds:
            return f"{seconds / length_s:.3g} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def printable(text: str, allowed: str = "") -> str:
    """Replace every non-printable character by "�".

    Escape sequences could otherwise command the terminal, and direction marks reverse the text.

    Args:
        text: text that another peer or program wrote.
        allowed: non-printable characters to leave in place, such as tabs.
    """
    return "".join(c if c.isprintable() or c in allowed else "�" for c in text)
