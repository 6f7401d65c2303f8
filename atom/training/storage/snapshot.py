"""Crash-safe snapshots: the whole state of one head in one safetensors file.

Written aside, synced, renamed: a snapshot is either whole or not there. Together with the journal
and the results since, it brings a restarted peer to the very state it had.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from atom.base.disk_words import why_not_written
from atom.base.errors import StorageError
from atom.base.leftover import remove_leftover

KEPT = 2
"""A joiner may still be reading the one before the newest."""


@dataclass(frozen=True)
class Snapshot:
    path: Path
    round: int
    head: bytes
    state_digest: bytes


def write_snapshot(
    folder: Path,
    round_number: int,
    head: bytes,
    state_digest: bytes,
    arenas: dict[str, torch.Tensor],
) -> Snapshot:
    """Saves `arenas` (name → flat tensor). Raises: StorageError when the disk is full or gone."""
    path = folder / f"round-{round_number:09d}-{head.hex()[:16]}.safetensors"
    aside = path.with_suffix(".partial")
    metadata = {
        "round": str(round_number),
        "head": head.hex(),
        "state_digest": state_digest.hex(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(arenas, aside, metadata=metadata)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    except (OSError, SafetensorError) as problem:
        remove_leftover(aside)
        raise StorageError(
            f"could not write the snapshot {path}: {why_not_written(problem)}",
            "free some disk space; the run goes on from the previous snapshot",
        ) from problem
    return Snapshot(path, round_number, head, state_digest)


def list_snapshots(folder: Path) -> list[Snapshot]:
    """Readable snapshots, newest first; a damaged one is passed over."""
    found = [_describe(path) for path in folder.glob("round-*.safetensors")]
    return sorted((s for s in found if s), key=lambda s: s.round, reverse=True)


def load_snapshot(snapshot: Snapshot) -> dict[str, torch.Tensor]:
    """The arenas by name. Raises: StorageError if the file does not read back."""
    try:
        with safe_open(snapshot.path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as problem:
        raise StorageError(
            f"{snapshot.path} cannot be read: {problem}",
            "delete it; the peer then fetches the state from the swarm",
        ) from problem


def tidy_snapshots(folder: Path) -> None:
    """Removes what a crash left half-written."""
    for path in folder.glob("*.partial"):
        remove_leftover(path)


def prune_snapshots(
    folder: Path,
    is_ours: Callable[[Snapshot], bool],
    keep: int = KEPT,
    in_use: Callable[[Snapshot], bool] = lambda snapshot: False,
) -> list[Snapshot]:
    """Deletes all but `keep`, and the oldest `in_use`; returns those kept that are ours, newest
    first.

    `is_ours` says whether our chain leads there. What a discarded branch left, be its rounds ever
    so high, goes first, but not before there is something of ours in its place.
    """
    newest_first = list_snapshots(folder)
    ours = [snapshot for snapshot in newest_first if is_ours(snapshot)]
    others = [snapshot for snapshot in newest_first if snapshot not in ours]
    lent = [snapshot for snapshot in ours[keep:] if in_use(snapshot)][-1:]
    for old in (ours + others)[keep:]:
        if old not in lent:
            remove_leftover(old.path)
    return ours[:keep] + lent


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
