"""Weights that are kept to be taken out later: of every n-th round, and of the best one by this
peer's validation.

Nothing of the protocol depends on them, and nobody else gets them. A file holds the weights that
are trained, without the optimizer's state, and what they validated at. So what the best is follows
from the files, whatever process wrote them: `round-…` came by the clock, `best-…` only by its loss.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from atom.base.errors import StorageError
from atom.base.files import remove_leftover
from atom.config import peer_file
from atom.swap.state_form import WEIGHTS
from atom.swarm.state.arenas import state_digest
from atom.training.storage.disk import ASIDE
from atom.training.storage.run_storage import (
    RunStorage,
    Snapshot,
    list_snapshots,
    write_snapshot,
)

CHECKPOINTS = "checkpoints"
BY_ROUND, BEST = "round", "best"
_HINT = "free some disk space, or keep fewer: [checkpoints] keep; the run goes on without this one"


def best_of(found: Iterable[Snapshot]) -> Snapshot | None:
    """The lowest validation loss, of equal ones the first; None: none was validated."""
    validated = [each for each in found if each.validation_loss is not None]
    return min(validated, key=lambda each: (each.validation_loss, each.round), default=None)


def figures(found: Iterable[Snapshot]) -> list[dict[str, Any]]:
    """What `atom info` shows of them."""
    return [{"round": each.round, "validation_loss": each.validation_loss} for each in found]


class Checkpoints:
    """Called by the thread after a step; but for `listed`, which is for any thread."""

    def __init__(self, folder: Path, storage: RunStorage, asked: peer_file.Checkpoints) -> None:
        self._folder = folder
        self._storage = storage
        self._asked = asked

    def listed(self) -> list[Snapshot]:
        """Those of our chain, newest first."""
        return list_snapshots(self._folder, self._storage.journal.heads)

    def stepped(self, arenas: Mapping[str, Tensor], validation_loss: float | None) -> None:
        """`arenas` are the state of the journal's head: keeps its weights if they are due, and
        drops what they replace. They are not kept where the next snapshot would lack their room."""
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
        """Whether it is lower than those of all that are kept."""
        best = best_of(self.listed())
        return best is None or best.validation_loss is None or loss < best.validation_loss

    def _prune(self) -> None:
        """All but what is to be kept, also what a discarded branch or a crash left."""
        found = self.listed()
        by_round = [each for each in found if each.path.name.startswith(BY_ROUND)]
        kept = {each.path for each in by_round[: self._asked.keep]}
        if self._asked.best and (best := best_of(found)) is not None:
            kept.add(best.path)
        for path in (*self._folder.glob("*.safetensors"), *self._folder.glob(f"*{ASIDE}")):
            if path not in kept:
                remove_leftover(path)
