"""Round 0 of a run: the values with which a replica begins, from the seed, the hub or a folder."""

import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from atom.base.control_groups import usable_processors
from atom.base.errors import MismatchError, UserError
from atom.config.run_file import PinnedRun
from atom.daemon.console import Console
from atom.daemon.model.recipe import Recipe
from atom.daemon.model.weight_files import WeightFiles, given_values
from atom.models.hub import fetch_weights
from atom.models.partly_trained import PartlyTrained
from atom.models.source import InitialValue
from atom.swarm.records.manifest import Manifest
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica

MOST_THREADS = 8
"""Largest number of threads that compute first values: each holds one parameter in memory."""


@dataclass(frozen=True)
class RoundZero:
    """State of round 0 of a founded run, and the ways to set a replica to it."""

    manifest: Manifest
    recipe: Recipe
    replica: Replica
    console: Console
    """Console that shows the progress."""
    weights: Path | None = None
    """Folder with the weights that the run began from, as named by `--from`; None: no folder."""

    def initialise(self) -> bool:
        """Set the replica to round 0, if the run's seed determines that state.

        Given weights cannot be computed: a joiner fetches the founder's first snapshot instead.

        Returns:
            True if the replica now equals the run's round 0 bit for bit.
        """
        run = self.recipe.run
        if run.model.weights is not None and run.train is None:
            return False
        _fill(self.replica, self.recipe, False, self.console, None)
        digest = state_digest(self.replica.state_arenas())
        return digest == self.manifest.initial_state_digest

    def fill_frozen(self) -> bool:
        """Fill in the frozen parameters from the seed, the hub or the folder that `--from` named.

        Returns:
            False if they must be fetched from other peers instead.

        Raises:
            ConfigError: the folder or the model cannot be used.
            MismatchError: the folder's weights are not the ones of the run.
        """
        begins_from = self.recipe.run.model.weights if self.weights is None else None
        if begins_from == "given":
            return False
        try:
            given = _given_values(self.weights, self.recipe, self.console)
            _fill(self.replica, self.recipe, True, self.console, given)
            if given and state_digest(self.replica.frozen) != self.manifest.frozen_digest:
                raise MismatchError(
                    f"{self.weights or 'the hub'} does not hold the initial weights of the run",
                    "get the founder's weights, or omit --from: other peers have them",
                )
        except UserError as problem:
            if begins_from is None:
                raise
            self.console.note(f"{problem.message}; the frozen weights are fetched from other peers")
            return False
        return True


def begin(recipe: Recipe, replica: Replica, console: Console, weights: Path | None) -> None:
    """Set the founder's replica to round 0, and its optimizer's state to zero.

    Args:
        recipe: the run and its model.
        replica: the replica to set.
        console: shows the progress.
        weights: folder that `--from` names; None: the hub has the first values, if the run pins
            them there, or the run's seed determines them.

    Raises:
        ConfigError: a value cannot be computed.
        UserError: the values in the folder are not this model's, or cannot be used.
    """
    if isinstance(recipe.source, PartlyTrained):
        console.note(recipe.source.summary())
    given = _given_values(weights, recipe, console)
    for frozen in (True, False):
        _fill(replica, recipe, frozen, console, given)


def begins_from_given(folder: Path | None, kept: PinnedRun | None) -> bool:
    """Return True if a run begins from weights given with `--from`, and check the folder.

    Args:
        folder: folder that `--from` names now; None: none.
        kept: the run as it was founded, if it is continued; None for a new run.

    Raises:
        ConfigError: the folder has no weights, or a file is damaged.
        MismatchError: a folder is named, but the run began without weights.
    """
    if kept is None and folder is not None:
        WeightFiles.open(folder)
    elif folder is not None and kept is not None and kept.model.weights is None:
        raise MismatchError(
            "the run in this state directory began from a seed, not from given weights",
            "omit --from, or found a new run with another name or --state DIR",
        )
    return folder is not None if kept is None else kept.model.weights == "given"


def _given_values(weights: Path | None, recipe: Recipe, console: Console) -> InitialValue | None:
    """Return the values in a folder or on the hub; None: the run's seed determines all values.

    Args:
        weights: folder with safetensors; None: no folder.
        recipe: the run and its model.
        console: shows the progress of a fetch.

    Raises:
        AddressError: the hub does not have the weights, or cannot be reached.
        UserError: the values are not this model's.
    """
    model = recipe.run.model
    if weights is None and model.weights == "hub":
        assert model.huggingface is not None
        assert model.revision is not None, "pinned with the weights"
        most_bytes = 8 * recipe.graph.layout.total_elements + (1 << 20)
        told = partial(console.progress, f"fetching {model.huggingface} from the hub")
        weights = fetch_weights(model.huggingface, model.revision, most_bytes, told)
    if weights is None:
        return None
    return given_values(recipe.source, weights)


def _fill(
    replica: Replica, recipe: Recipe, frozen: bool, console: Console, given: InitialValue | None
) -> None:
    """Set the frozen or the trained parameters, with values of a folder or of the run's seed."""
    specs = [spec for spec in recipe.graph.layout.specs if spec.frozen == frozen]
    if not specs:
        return
    source, seed = recipe.source, recipe.run.run.seed
    several = given is not None or source.values_in_threads
    threads = min(usable_processors(), MOST_THREADS) if several else 1
    value_of = source.beginning(given, seed) if given else source.initial_values(seed)
    lock, made, total = threading.Lock(), 0, sum(spec.numel for spec in specs)

    def counted(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        nonlocal made
        value = value_of(name, shape)
        with lock:
            made += value.numel()
            console.progress("making the first weights", made, total)
        return value

    fill = replica.fill_frozen if frozen else replica.initialise
    fill(counted, threads)
