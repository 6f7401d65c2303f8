"""From a recipe to a replica in memory, and to what cuts it again. Knows no peers."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from atom.base.units import format_bytes
from atom.config.peer_file import PeerFile
from atom.daemon.fitting.cutting import (
    Callbacks,
    Cut,
    Cutter,
    named_if_out_of_memory,
    require_host_memory,
)
from atom.daemon.fitting.device_choice import free_host_bytes, peer_bytes
from atom.daemon.model.recipe import PRECISIONS, Recipe, open_device, verify_recipe
from atom.models.data.samples import Samples
from atom.training.replica.replica import Replica


@dataclass(frozen=True)
class Built:
    """A replica that is not initialised yet. It is changed on the thread that trains."""

    replica: Replica
    cutter: Cutter
    folder: Path
    """Where the generated source is left."""

    def rearrange(self, cut: Cut) -> None:
        """Raises: ShortageError, and all is as it was, if there is no memory for it."""
        with named_if_out_of_memory("rearranged"):
            self.replica.rearrange(cut.training, cut.evaluation, cut.settings)
        _leave_source(cut, self.folder)


def build_replica(
    recipe: Recipe,
    samples: Samples,
    peer: PeerFile,
    dropout_seed: int,
    folder: Path,
    callbacks: Callbacks,
) -> Built:
    """Checks the program against eager, cuts it for this device, allocates the replica.

    Leaves the generated source in `folder`. Raises: ConfigError, ModelError; DeviceError,
    ShortageError: for a budget that is too small before anything is allocated.
    """
    if peer.device.cpu_threads:
        torch.set_num_threads(peer.device.cpu_threads)
    run, have_bytes = recipe.run, free_host_bytes(peer.host.memory_bytes)
    require_host_memory(peer_bytes(run, recipe.graph.layout), have_bytes, peer.host.memory_bytes)
    verify_recipe(recipe, samples, callbacks.note, callbacks.progress)
    device = open_device(peer.device.kind, PRECISIONS[run.model.precision])
    cutter = Cutter(recipe, device, peer, dropout_seed, callbacks)
    cut = cutter.cut(peer)
    _leave_source(cut, folder)
    with named_if_out_of_memory("set up"):
        replica = Replica(cut.training, cut.evaluation, cut.settings, device)
    if device.unlocked_bytes:
        told = format_bytes(device.unlocked_bytes)
        callbacks.note(f"the driver does not lock {told} of host memory: copies of it are slower")
    return Built(replica, cutter, folder)


def _leave_source(cut: Cut, folder: Path) -> None:
    """For people to read: no reason to end, or to go back, if there is no room for it."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sub_models.py").write_text(cut.training.source, encoding="utf-8")
