"""Snapshots: the whole state of one head in one file.

Together with the journal and the results since, a snapshot brings a restarted peer to the very
state it had. The arenas are a mapping of names to flat tensors; what they mean is the replica's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from atom.base.leftover import remove_leftover
from atom.training.storage.disk import read_tensors, write_tensors

KEPT = 2
"""A joiner may still be reading the one before the newest."""


@dataclass(frozen=True)
class Snapshot:
    """A file, and what it says of itself."""

    path: Path
    round: int
    head: bytes
    state_digest: bytes


def write_snapshot(
    folder: Path, round_number: int, head: bytes, state_digest: bytes, arenas: Mapping[str, Tensor]
) -> Snapshot:
    """Saves `arenas` (name → flat tensor). Raises: StorageError when the disk is full or gone."""
    path = folder / f"round-{round_number:09d}-{head.hex()[:16]}.safetensors"
    metadata = {
        "round": str(round_number),
        "head": head.hex(),
        "state_digest": state_digest.hex(),
    }
    write_tensors(path, arenas, metadata, synced=True)
    return Snapshot(path, round_number, head, state_digest)


def list_snapshots(folder: Path) -> list[Snapshot]:
    """Readable snapshots, newest first; a damaged one is passed over."""
    found = [_describe(path) for path in folder.glob("round-*.safetensors")]
    return sorted((s for s in found if s), key=lambda s: s.round, reverse=True)


def load_snapshot(snapshot: Snapshot) -> dict[str, Tensor]:
    """The arenas by name. Raises: StorageError if the file does not read back."""
    return read_tensors(snapshot.path)


def prune_snapshots(
    folder: Path, is_ours: Callable[[Snapshot], bool], keep: int = KEPT
) -> list[Snapshot]:
    """Deletes all but `keep`; returns those kept that are ours, newest first.

    `is_ours` says whether our chain leads there. What a discarded branch left, be its rounds ever
    so high, goes first, but not before there is something of ours in its place.
    """
    newest_first = list_snapshots(folder)
    ours = [snapshot for snapshot in newest_first if is_ours(snapshot)]
    others = [snapshot for snapshot in newest_first if snapshot not in ours]
    for old in (ours + others)[keep:]:
        remove_leftover(old.path)
    return ours[:keep]


def _describe(path: Path) -> Snapshot | None:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        return Snapshot(
            path,
            int(metadata["round"]),
            bytes.fromhex(metadata["head"]),
            bytes.fromhex(metadata["state_digest"]),
        )
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
