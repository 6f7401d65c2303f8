"""Checkpoints for later export: weights of every n-th round, and the best ones by validation loss.

The protocol does not depend on them, and other peers cannot fetch them. A file holds the trained
weights without the optimizer's state, and their validation loss on this peer. The best one is found
from the files alone, so it is known after a restart. A file `round-…` was written because its round
was due, a file `best-…` only because of its loss.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from atom.base.errors import StorageError
from atom.base.files import remove_leftover
from atom.config import peer_file
from atom.swap.host_store import WEIGHTS
from atom.swarm.state.arenas import state_digest
from atom.training.storage.disk import PARTIAL_SUFFIX
from atom.training.storage.run_storage import RunStorage, Snapshot, list_snapshots, write_snapshot

CHECKPOINTS = "checkpoints"
BY_ROUND, BEST = "round", "best"
_HINT = "free some disk space, or keep fewer: [checkpoints] keep; the run goes on without this one"


def best_of(found: Iterable[Snapshot]) -> Snapshot | None:
    """Return the checkpoint with the lowest validation loss, the earliest of equal ones.

    None: no checkpoint has a validation loss.
    """
    validated = [each for each in found if each.validation_loss is not None]
    return min(validated, key=lambda each: (each.validation_loss, each.round), default=None)


def figures(found: Iterable[Snapshot]) -> list[dict[str, Any]]:
    """Return the figures of checkpoints that `atom info` shows."""
    return [{"round": each.round, "validation_loss": each.validation_loss} for each in found]


class Checkpoints:
    """Checkpoint files of one run.

    Used by the thread for tasks after a step; `listed` is thread-safe.
    """

    def __init__(self, folder: Path, storage: RunStorage, asked: peer_file.Checkpoints) -> None:
        self._folder = folder
        self._storage = storage
        self._asked = asked

    def listed(self) -> list[Snapshot]:
        """Return the checkpoints of our chain, newest first. Thread-safe."""
        return list_snapshots(self._folder, self._storage.journal)

    def stepped(self, arenas: Mapping[str, Tensor], validation_loss: float | None) -> None:
        """Write a checkpoint if one is due, and delete the checkpoints that it replaces.

        No checkpoint is written if the next snapshot would then not fit on the disk.

        Args:
            arenas: State at the journal's head.
            validation_loss: Mean validation loss of its weights; None: not validated.
        """
        head = self._storage.journal.head
        loss = validation_loss if math.isfinite(validation_loss or 0.0) else None
        every = self._asked.every_rounds
        due = every is not None and head.round % every == 0
        if not due and not (self._asked.best and loss is not None and self._beats(loss)):
            return
        weights = {name: arena for name, arena in arenas.items() if name in WEIGHTS}
        needed = sum(each.nbytes for each in (*weights.values(), *arenas.values()))
        needed += self._storage.results.usual_bytes
        room = self._storage.room

        def write() -> None:
            if (free := room.free_bytes()) < needed:
                what = f"no room for a checkpoint beside the next snapshot: {needed:,} bytes"
                raise StorageError(f"{what} are needed, {free:,} are free", _HINT)
            name, digest = BY_ROUND if due else BEST, state_digest(weights)
            try:
                write_snapshot(self._folder, head.round, head.digest, digest, weights, name, loss)
            except StorageError as problem:
                raise StorageError(problem.message, _HINT) from problem

        if room.attempt(CHECKPOINTS, write):
            self._prune()

    def _beats(self, loss: float) -> bool:
        """Return True if the loss is lower than the losses of all existing checkpoints."""
        best = best_of(self.listed())
        return best is None or best.validation_loss is None or loss < best.validation_loss

    def _prune(self) -> None:
        """Delete all files but the checkpoints to keep, also leftovers of branches and crashes."""
        found = self.listed()
        by_round = [each for each in found if each.path.name.startswith(BY_ROUND)]
        kept = {each.path for each in by_round[: self._asked.keep]}
        if self._asked.best and (best := best_of(found)) is not None:
            kept.add(best.path)
        for path in (*self._folder.glob("*.safetensors"), *self._folder.glob(f"*{PARTIAL_SUFFIX}")):
            if path not in kept:
                remove_leftover(path)
