"""What happens to a victim's disk between two of its lives."""

import os
from pathlib import Path


def truncate_snapshots(state: Path) -> None:
    for path in (state / "snapshots").glob("*.safetensors"):
        os.truncate(path, path.stat().st_size // 2)


def flip_results(state: Path) -> None:
    for path in (state / "results").glob("*.safetensors"):
        flip_byte(path, -5)


def empty_results(state: Path) -> None:
    """As a power cut may leave a file whose name had reached the disk, and nothing else of it."""
    for path in (state / "results").glob("*.safetensors"):
        os.truncate(path, 0)


def flip_snapshots(state: Path) -> None:
    for path in (state / "snapshots").glob("*.safetensors"):
        flip_byte(path, -5)


def tear_chain(state: Path) -> None:
    path = state / "chain.bin"
    os.truncate(path, path.stat().st_size - 7)


def lose_chain(state: Path) -> None:
    (state / "chain.bin").unlink()


def lose_everything_but_identity(state: Path) -> None:
    for name in ("snapshots", "results"):
        for path in (state / name).iterdir():
            path.unlink()
    lose_chain(state)


def nothing(state: Path) -> None:
    """A clean restart."""


DAMAGES = (
    truncate_snapshots,
    flip_results,
    nothing,
    tear_chain,
    empty_results,
    flip_snapshots,
    lose_chain,
    lose_everything_but_identity,
)


def flip_byte(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0xFF
    path.write_bytes(raw)
