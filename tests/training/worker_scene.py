"""A real worker's thread with a replica of 64 numbers, whose passes and steps a test may hold."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from atom.optim.gradients import FlatNumbers
from atom.swap.engine import PassCancelled
from atom.swarm.chain.commit import Head
from atom.swarm.exchange.contribution import Contribution, Sums
from atom.training.replica.passes import PassWatch
from atom.training.replica.worker import Batch, Worker
from tests.manual_clock import ManualClock

ELEMENTS = 64
WAIT_S = 20.0

ShouldStop = Callable[[], bool]


class SmallDevice:
    """Engines as a gate sees them: when their memory is given back, after waiting how long, and
    when it is taken again."""

    def __init__(self) -> None:
        self.free = True
        self.told: list[float | str] = []

    def preempt(self, wait_s: float) -> bool:
        self.told.append(wait_s)
        return self.free

    def resume(self) -> None:
        self.told.append("resume")


class CountingReplica:
    """The methods of a replica. A pass adds one to every gradient for each sequence."""

    def __init__(self) -> None:
        self.micro_batches, self.breakable = 8, True
        self.until_step: int | None = None
        self.overlaps = False
        self.own: dict[str, Tensor] = {}
        self.adopted: tuple[dict[str, Tensor], bool] | None = None
        self.arenas = {name: torch.zeros(ELEMENTS) for name in ("master", "exp_avg", "exp_avg_sq")}
        self.gradients = torch.zeros(ELEMENTS)
        self.sequences, self.loss_sum, self.step_count = 0, 0.0, 0
        self.watch = PassWatch(ManualClock())
        self.engines = SmallDevice()
        self.during_pass: Callable[[ShouldStop], None] = lambda should_stop: None
        self.during_evaluation: Callable[[ShouldStop], None] = lambda should_stop: None
        self.passes: list[int] = []
        """How many micro-batches each had."""
        self.may_step = threading.Event()
        self.may_step.set()
        self.step_fails: Exception | None = None
        self.steps: list[int] = []
        self._step: FlatNumbers | None = None

    def run_pass(self, batches: Sequence[Batch], should_stop: ShouldStop) -> int:
        self.passes.append(len(batches))
        self.during_pass(should_stop)
        if should_stop():
            raise PassCancelled("scripted")
        count = sum(len(batch["tokens"]) for batch in batches)
        self.gradients += count
        self.sequences += count
        self.loss_sum += 2.0 * count
        return count

    def contribution(self) -> Contribution:
        return Sums(self.gradients)

    def reset_gradients(self) -> None:
        self.gradients.zero_()
        self.sequences, self.loss_sum = 0, 0.0

    def load_state(self, arenas: Mapping[str, Tensor], round: int) -> None:
        for name, arena in self.arenas.items():
            arena.copy_(arenas[name])
        self.step_count = round

    def own_state(self) -> dict[str, Tensor]:
        return self.own

    def adopt_own(self, saved: dict[str, Tensor], at_same_state: bool) -> None:
        self.adopted = (saved, at_same_state)

    def drop_contribution(self) -> None:
        self.reset_gradients()

    def begin_step(
        self,
        mean_gradient: FlatNumbers,
        gradient_norm: float,
        round: int,
        ours: int,
        knows_lost: bool = False,
    ) -> None:
        assert round == self.step_count + 1
        self.knew_lost = knows_lost
        self.ours = ours
        if self.overlaps:
            self.sequences -= ours
        else:
            self.reset_gradients()
        assert self._step is None, "two steps at once"
        self._step, self.step_count = mean_gradient, round
        self.steps.append(round)

    def finish_step(self) -> None:
        assert self.may_step.wait(WAIT_S)
        if self.step_fails is not None:
            raise self.step_fails
        if self._step is not None:
            self.arenas["master"] -= self._step[:]
            self._step = None

    def state_arenas(self) -> dict[str, Tensor]:
        assert self._step is None, "in the middle of a step there is no state"
        return self.arenas

    def evaluate(self, batches: Sequence[Batch], should_stop: ShouldStop) -> float:
        self.during_evaluation(should_stop)
        if should_stop():
            raise PassCancelled("scripted")
        return float(len(batches))


class SmallLoader:
    """Deals nothing in particular, and remembers for which heads it was asked to."""

    micro_batch, sequence_tokens = 4, 16
    held_back = ("",)

    def __init__(self) -> None:
        self.dealt: list[bytes] = []
        self.goes_on: list[bool] = []
        self.back: list[int] = []

    def deal(self, head: Head, goes_on: bool = False) -> None:
        self.dealt.append(head.digest)
        self.goes_on.append(goes_on)

    def draw(self, micro_batches: int) -> list[Batch]:
        return [{"tokens": torch.zeros(self.micro_batch, 2)} for _ in range(micro_batches)]

    def validation(self, micro_batches: int) -> dict[str, list[Batch]]:
        return {name: self.draw(micro_batches) for name in self.held_back}

    def put_back(self, micro_batches: int) -> None:
        self.back.append(micro_batches)


class WorkerScene:
    """A worker that is started and held; micro-batches of four sequences."""

    def __init__(self, global_batch: int) -> None:
        self.replica, self.loader, self.clock = CountingReplica(), SmallLoader(), ManualClock(100.0)
        self.failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.passed = threading.Event()
        """The global batch is worked off."""
        self._global_batch = global_batch
        replica: Any = self.replica
        loader: Any = self.loader
        tells = (self._pass, lambda void: None, self.failures.put)
        self.worker = Worker(replica, loader, global_batch, self.clock, *tells)
        self.worker.start()

    def _pass(self) -> None:
        if self.replica.sequences >= self._global_batch:
            self.passed.set()

    def on_worker(self, command: Callable[[], Any] = lambda: None) -> Any:
        """Return the result of `command` on the worker's thread, after all commands submitted
        before."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.worker.submit(lambda: answers.put(command()))
        return answers.get(timeout=WAIT_S)

    def train(self) -> None:
        """Lets it work off its global batch."""
        self.worker.release("starting")
        assert self.passed.wait(WAIT_S)
        self.on_worker()

    def close(self) -> None:
        self.replica.may_step.set()
        self.worker.close()
