"""A group of devices that run each pass together, with every sub-model on one of them.

Each device has an engine with its own sub-models, and during a pass a thread. Computations and
additions have the same order as on one device, so a group of any size gives the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import torch
from torch import Tensor

from atom.swap.device import Device
from atom.swap.engine import Engine, PassCancelled
from atom.swap.host_sums import HostSum
from atom.swap.running_pass import Handoff, HandoffStopped
from atom.swap.schedule import Observer
from atom.swap.voided import Cause, PassVoided, not_finite

_Read = TypeVar("_Read")
Job = Callable[[Engine, Callable[[], bool], Handoff], list[_Read]]
"""Function that runs one engine's share of a pass: engine, `should_stop` and exchange → results."""


class EngineGroup:
    """Engines of one program on the devices of a group, with the interface of `Engine`."""

    def __init__(self, engines: Sequence[Engine], device: Device) -> None:
        """Start nothing.

        Args:
            engines: Engines of the group, one per device.
            device: Any device of the group.
        """
        self._engines, self._device = engines, device
        self.loss_scale = 1.0
        self.observer: Observer | None = None

    def run_pass(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        seeds: Sequence[int],
        should_stop: Callable[[], bool] = lambda: False,
        first: bool = False,
        on_added: Callable[[Sequence[HostSum]], None] | None = None,
        number: int = 0,
    ) -> list[float]:
        """Run a pass on all devices, as `Engine.run_pass`.

        Several threads call `should_stop` and `on_added`.
        """
        for engine in self._engines:
            engine.loss_scale, engine.observer = self.loss_scale, self.observer

        def job(engine: Engine, stop: Callable[[], bool], handoff: Handoff) -> list[float]:
            return engine.run_pass(micro_batches, seeds, stop, first, on_added, number, handoff)

        try:
            return self._run_on_all(job, should_stop)
        except BaseException:
            for engine in self._engines:
                engine.break_off()
            raise

    def evaluate(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[Tensor]:
        """Run the forward of every micro-batch on all devices; see `Engine.evaluate`."""
        return self._run_on_all(lambda e, *rest: e.evaluate(micro_batches, *rest), should_stop)

    def _run_on_all(self, job: Job[_Read], should_stop: Callable[[], bool]) -> list[_Read]:
        """Run a job on every engine; return the results of the engine with the last sub-model.

        If engines fail, the error that explains the others is raised after all engines have
        stopped.
        """
        handoff, threads = Handoff(), torch.get_num_threads()

        def run(engine: Engine) -> list[_Read]:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)  # PyTorch has one setting per thread
            try:
                return job(engine, should_stop, handoff)
            except BaseException:
                handoff.stop()
                raise

        outside = self._device.random_state()
        with ThreadPoolExecutor(len(self._engines), "atom-group") as pool:
            try:
                running = [pool.submit(run, engine) for engine in self._engines]
            except BaseException:
                handoff.stop()  # the engines that run would wait for the missing one
                raise
        failures = [failure for each in running if (failure := each.exception()) is not None]
        with self._device.drawing(outside):  # restores the state, which engines changed
            pass
        own = [failure for failure in failures if not isinstance(failure, HandoffStopped)]
        if own:
            failure = min(own, key=_report_rank)
            if _report_rank(failure) == 1 and handoff.losses:
                raise not_finite(handoff.losses) from failure
            raise failure
        return [found for each in running for found in each.result()]

    @property
    def touched(self) -> bool:
        """True if an engine's gradient arena may hold a part of the latest pass."""
        return any(engine.touched for engine in self._engines)

    @property
    def leaving(self) -> bool:
        """True if gradients of the latest training pass were sent to the arena."""
        return any(engine.leaving for engine in self._engines)

    @property
    def adding(self) -> list[int]:
        """Sub-models whose gradient sums are sent to the host's arena in every pass."""
        return [sub_model for engine in self._engines for sub_model in engine.adding]

    def wait_added(self) -> None:
        """Wait until the arena holds the gradients of all passes; see `Engine.wait_added`."""
        with ExitStack() as every_engine:  # waits for all of them, even if one raises
            for engine in self._engines:
                every_engine.callback(engine.wait_added)

    def forget(self) -> BaseException | None:
        """Wait for gradients under way; return an engine's first error. See `Engine.forget`."""
        return next(filter(None, [engine.forget() for engine in self._engines]), None)


def _report_rank(failure: BaseException) -> int:
    """Return the rank of an error; of several errors, one with the lowest rank is raised.

    Gradients that are not finite rank behind other errors, because a loss that is not finite causes
    them. A cancellation ranks last.
    """
    if isinstance(failure, PassVoided) and failure.cause is Cause.GRADIENTS:
        return 1
    return 2 if isinstance(failure, PassCancelled) else 0
