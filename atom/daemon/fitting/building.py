"""From a recipe to a replica in memory, and what its device and host may give. Knows no peers."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from atom.base.errors import DeviceError
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

PATIENCE_S = 60.0
"""For the pass under way, where it cannot be broken off, and what else the worker is at."""
_NOT_SO_LITTLE = (
    "nothing was changed; allow more, or all that is free: leave out [device] and [host] memory"
)


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


class MemoryCaps:
    """Plans anew on the caller's thread, and rearranges on the worker's. One caller at a time."""

    def __init__(
        self,
        built: Built,
        submit: Callable[[Callable[[], None]], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`submit`: runs a command on the worker's thread, soon."""
        self._built, self._submit, self._patience_s = built, submit, patience_s
        self._errand: Future[None] | None = None
        self._closed = False

    def change(self, peer: PeerFile) -> None:
        """What `peer` allows is in force from the next pass on.

        Raises: DeviceError if the model does not fit it in any way, or if the worker does not come
        to it; ShortageError if other programs have the memory. Then nothing is changed.
        """
        try:
            cut = self._built.cutter.cut(peer)
        except DeviceError as problem:
            raise DeviceError(problem.message, _NOT_SO_LITTLE) from problem
        self._errand = errand = Future[None]()
        self._submit(lambda: _run(errand, lambda: self._built.rearrange(cut)))
        if self._closed:
            errand.cancel()
        try:
            errand.result(self._patience_s)
        except (CancelledError, TimeoutError):
            if not errand.cancel():  # it has begun
                return errand.result()
            raise DeviceError(
                "the peer is busy with what cannot be broken off, and keeps the caps it has",
                "try again in a minute",
            ) from None

    def close(self) -> None:
        """Nobody waits any more. From any thread."""
        self._closed = True
        if self._errand is not None:
            self._errand.cancel()


def _run(errand: "Future[None]", act: Callable[[], None]) -> None:
    """On the worker's thread, unless nobody waits for it any more."""
    if not errand.set_running_or_notify_cancel():
        return
    try:
        act()
    except Exception as failure:  # noqa: BLE001 - whoever waits for it hears of it
        errand.set_exception(failure)
    else:
        errand.set_result(None)
