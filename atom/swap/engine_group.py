"""A group of devices runs each pass together: every sub-model on one of them.

Each has an engine with the sub-models that are its own, and a thread. Any group gives the bits of
one device: what it computes, and what it adds, is in the same order.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import torch
from torch import Tensor

from atom.swap.device import Device
from atom.swap.engine import Engine, Observer, PassCancelled
from atom.swap.handoff import Handoff, HandoffStopped
from atom.swap.host_sums import HostSum
from atom.swap.schedule import Observed
from atom.swap.voided import Cause, PassVoided, not_finite

_Read = TypeVar("_Read")
Job = Callable[[Engine, Callable[[], bool], Handoff], list[_Read]]


class EngineGroup:
    """The engines of one program on the devices of a group. As `Engine`, which see."""

    def __init__(self, engines: Sequence[Engine], device: Device) -> None:
        """`device`: one of theirs."""
        self._engines, self._device = engines, device
        self.loss_scale = 1.0
        self.observer: Observer | None = None
        self._pool = ThreadPoolExecutor(len(engines), "atom-group")

    def run_pass(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        seeds: Sequence[int],
        should_stop: Callable[[], bool] = lambda: False,
        first: bool = False,
        landed: Callable[[Sequence[HostSum]], None] | None = None,
        number: int = 0,
    ) -> list[float]:
        """`should_stop` and `landed`: called by several threads."""
        for place, engine in enumerate(self._engines):
            engine.loss_scale = self.loss_scale
            engine.observer = self.observer and _of_device(self.observer, place)

        def job(engine: Engine, stop: Callable[[], bool], handoff: Handoff) -> list[float]:
            return engine.run_pass(micro_batches, seeds, stop, first, landed, number, handoff)

        try:
            return self._together(job, should_stop)
        except BaseException:
            for engine in self._engines:
                engine.break_off()
            raise

    def evaluate(
        self,
        micro_batches: Sequence[Mapping[str, Tensor]],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[Tensor]:
        return self._together(lambda e, *rest: e.evaluate(micro_batches, *rest), should_stop)

    def _together(self, job: Job[_Read], should_stop: Callable[[], bool]) -> list[_Read]:
        """What the engine with the last sub-model gives. Raises: what went wrong on one of them,
        when all are at rest."""
        handoff, threads = Handoff(), torch.get_num_threads()

        def run(engine: Engine) -> list[_Read]:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)  # PyTorch counts them per thread
            try:
                return job(engine, should_stop, handoff)
            except BaseException:
                handoff.stop()
                raise

        outside = self._device.random_state()
        running = [self._pool.submit(run, engine) for engine in self._engines]
        failures = [failure for each in running if (failure := each.exception()) is not None]
        with self._device.drawing(outside):  # each left there what it liked
            pass
        own = [failure for failure in failures if not isinstance(failure, HandoffStopped)]
        if own:
            failure = min(own, key=_rank)
            if _rank(failure) == 1 and handoff.losses:
                raise not_finite(handoff.losses) from failure
            raise failure
        return [found for each in running for found in each.result()]

    @property
    def touched(self) -> bool:
        return any(engine.touched for engine in self._engines)

    @property
    def leaving(self) -> bool:
        return any(engine.leaving for engine in self._engines)

    @property
    def lands(self) -> list[int]:
        return [sub_model for engine in self._engines for sub_model in engine.lands]

    def landed(self) -> None:
        with ExitStack() as all_of_them:  # whatever is raised, nothing lands afterwards
            for engine in self._engines:
                all_of_them.callback(engine.landed)

    def forget(self) -> BaseException | None:
        return next(filter(None, [engine.forget() for engine in self._engines]), None)


def _of_device(observer: Observer, place: int) -> Observer:
    def told(event: Observed, start_s: float, end_s: float, device: int = 0, /) -> None:
        observer(event, start_s, end_s, place)

    return told


def _rank(failure: BaseException) -> int:
    """Which failure of several is told: a loss that is not finite makes gradients so."""
    if isinstance(failure, PassVoided) and failure.cause is Cause.GRADIENTS:
        return 1
    return 2 if isinstance(failure, PassCancelled) else 0
