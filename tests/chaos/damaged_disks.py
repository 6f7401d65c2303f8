"""What happens to a victim's disk between two of its lives."""

import os
from collections.abc import Callable
from pathlib import Path

Damage = tuple[tuple[str, Callable[[Path], None]], ...]
"""Which files of the state directory, and what becomes of each."""


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def emptied(path: Path) -> None:
    """As a power cut may leave a file whose name had reached the disk, and nothing else of it."""
    os.truncate(path, 0)


def flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 0xFF
    path.write_bytes(raw)


SNAPSHOTS, RESULTS, CHAIN = "snapshots/*.safetensors", "results/*.safetensors", "chain.bin"
DAMAGES: tuple[Damage, ...] = (
    ((SNAPSHOTS, halved),),
    ((RESULTS, flipped),),
    (),
    ((CHAIN, torn),),
    ((RESULTS, emptied),),
    ((SNAPSHOTS, flipped),),
    ((CHAIN, Path.unlink),),
    ((SNAPSHOTS, Path.unlink), (RESULTS, Path.unlink), (CHAIN, Path.unlink)),
)


def deal(damage: Damage, state: Path) -> None:
    for pattern, deed in damage:
        for path in sorted(state.glob(pattern)):
            deed(path)
