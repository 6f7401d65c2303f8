"""The worker's thread: passes while nothing holds it, commands in between."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from atom.base.clock import BootClock
from atom.base.errors import ShortageError
from atom.swap.engine import PassCancelled
from atom.swap.readiness import StepFailed
from atom.swap.voided import Cause, PassVoided
from atom.training.replica import worker as worker_module
from atom.training.replica.engines import DeviceTaken
from atom.training.replica.worker import Batch, Pause, Work, Worker
from atom.training.round.batch_policy import GlobalBatch

WAIT_S = 10.0


@dataclass(frozen=True)
class Done:
    sequences: int
    loss_sum: float = 0.0
    seconds: float = 0.01


class Engines:
    """Of a device without memory."""

    def __init__(self) -> None:
        self.calls: list[float | str] = []

    def preempt(self, wait_s: float) -> bool:
        self.calls.append(wait_s)
        return True

    def resume(self) -> None:
        self.calls.append("resume")


class Counter:
    """A replica that only counts."""

    micro_batches = 8

    def __init__(self) -> None:
        self.sequences = 0
        self.sizes: list[int] = []
        self.void: list[PassVoided] = []
        self.in_pass = False
        self.failure: Exception | None = None
        self.endless, self.under_way = threading.Event(), threading.Event()
        self.breakable = True
        self.device_taken = False
        self.engines = Engines()

    def run_pass(self, batches: Sequence[Batch], should_stop: Callable[[], bool]) -> Done:
        self.sizes.append(len(batches))
        if self.failure is not None:
            raise self.failure
        if self.void:
            self.micro_batches = 2
            raise self.void.pop()
        while self.endless.is_set() and not should_stop():
            self.under_way.set()
        if should_stop():
            raise PassCancelled("scripted")
        if self.device_taken:
            raise DeviceTaken("scripted")
        self.in_pass = True
        size = sum(len(batch["tokens"]) for batch in batches)
        self.sequences += size
        self.in_pass = False
        return Done(size)


class Scene:
    def __init__(self) -> None:
        self.replica = Counter()
        self.passed = threading.Event()
        self.failures: list[BaseException] = []
        self.failed = threading.Event()
        self.voided: list[PassVoided] = []
        self.put_back: list[int] = []
        deck = SimpleNamespace(
            next_batch=lambda n: {"tokens": torch.zeros(n, 2)}, put_back=self.put_back.append
        )
        work = Work(GlobalBatch(24), 4, deck)
        self.worker = Worker(
            self.replica, work, BootClock(), self._pass, self.voided.append, self._fail
        )
        self.worker.start()

    def _pass(self) -> None:
        if self.replica.sequences == 24:
            self.passed.set()

    def _fail(self, failure: BaseException) -> None:
        self.failures.append(failure)
        self.failed.set()

    def on_worker(self, what: str = "") -> int:
        """Runs a command behind everything submitted; the count it sees."""
        seen: list[int] = []
        done = threading.Event()
        self.worker.submit(lambda: (seen.append(self.replica.sequences), done.set()))  # type: ignore[arg-type, return-value, func-returns-value]
        assert done.wait(WAIT_S), what
        return seen[0]


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.worker.close()


def test_what_is_held_for_two_reasons_needs_both_released(scene: Scene) -> None:
    scene.worker.hold("paused")
    scene.worker.release("starting")
    assert scene.on_worker() == 0
    scene.worker.release("paused")
    assert scene.passed.wait(WAIT_S)
    assert scene.on_worker() == 24, "alone it trains exactly the global batch, then waits"
    assert scene.worker.rate() > 0
    assert scene.worker.pass_seconds > 0


def test_a_pause_breaks_the_pass_off_and_the_same_samples_come_again(scene: Scene) -> None:
    scene.replica.endless.set()
    scene.worker.release("starting")
    assert scene.replica.under_way.wait(WAIT_S)
    assert scene.worker.gate.pause(Pause.OWNER, "by its owner", 2.0)
    assert scene.worker.gate.pause(Pause.SCHEDULE, "outside its hours", 1.0)
    assert scene.on_worker("the pass was broken off") == 0
    assert scene.put_back == [24]
    scene.replica.endless.clear()
    scene.worker.gate.resume(Pause.OWNER)
    assert scene.worker.gate.paused
    assert scene.on_worker() == 0
    scene.worker.gate.resume(Pause.SCHEDULE)
    assert scene.passed.wait(WAIT_S)
    scene.worker.close()
    assert scene.replica.engines.calls == [2.0, 1.0, "resume"]


def test_what_is_urgent_breaks_the_pass_off_and_training_goes_on(scene: Scene) -> None:
    scene.replica.endless.set()
    scene.worker.release("starting")
    assert scene.replica.under_way.wait(WAIT_S)
    scene.worker.submit_soon(scene.replica.endless.clear)
    assert scene.passed.wait(WAIT_S)
    scene.worker.close()
    assert scene.put_back == [24]


def test_whoever_is_paused_still_has_work_and_whoever_is_held_has_none(scene: Scene) -> None:
    assert not scene.worker.has_work, "it has not begun"
    scene.worker.gate.pause(Pause.TURN, "another run", 2.0)
    scene.worker.release("starting")
    scene.on_worker()
    assert scene.worker.has_work
    scene.worker.hold("round")
    scene.on_worker()
    assert not scene.worker.has_work


def test_a_pass_that_would_take_counted_work_with_it_is_finished(scene: Scene) -> None:
    scene.replica.endless.set()
    scene.replica.breakable = False
    scene.worker.release("starting")
    assert scene.replica.under_way.wait(WAIT_S)
    scene.worker.gate.pause(Pause.OWNER, "by its owner", 2.0)
    scene.replica.endless.clear()
    assert scene.passed.wait(WAIT_S)
    assert scene.on_worker() == 24
    scene.worker.close()
    assert scene.put_back == []


def test_a_device_that_others_took_is_tried_for_now_and_then(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "RETRY_S", 0.2)
    scene.replica.device_taken = True
    scene.worker.release("starting")
    scene.on_worker()
    scene.on_worker()
    assert scene.worker.gate.why_not == "another program has the device's memory"
    assert not scene.worker.has_work
    assert scene.put_back == [24], "not before its time"
    scene.replica.device_taken = False
    assert scene.passed.wait(WAIT_S)
    scene.worker.close()
    assert scene.worker.gate.why_not == ""


def test_a_command_never_meets_half_a_pass(scene: Scene) -> None:
    met: list[bool] = []
    scene.worker.release("starting")
    for _ in range(200):
        scene.worker.submit(lambda: met.append(scene.replica.in_pass))
    scene.worker.close()
    assert met == [False] * 200


def test_a_failing_pass_is_reported_and_ends_the_thread(scene: Scene) -> None:
    scene.replica.failure = RuntimeError("a bug")
    scene.worker.release("starting")
    assert scene.failed.wait(WAIT_S)
    assert str(scene.failures[0]) == "a bug"


@pytest.mark.parametrize(
    "failure",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        StepFailed(MemoryError("in the optimizer's thread")),
        RuntimeError("unable to mmap 64 bytes from file <a>: Cannot allocate memory (12)"),
    ],
)
def test_memory_that_runs_out_elsewhere_is_named(scene: Scene, failure: Exception) -> None:
    def fail() -> None:
        raise failure

    scene.worker.submit(fail)
    assert scene.failed.wait(WAIT_S)
    assert isinstance(scene.failures[0], ShortageError)
    assert "free host memory" in scene.failures[0].hint


def test_after_a_void_pass_the_next_one_is_no_larger_than_the_replica_says(scene: Scene) -> None:
    void = PassVoided(Cause.MEMORY, "scripted")
    scene.replica.void = [void]
    scene.worker.release("starting")
    assert scene.passed.wait(WAIT_S)
    scene.worker.close()
    assert scene.voided == [void]
    assert scene.replica.sizes == [6, 2, 2, 2]
    assert not scene.failures
