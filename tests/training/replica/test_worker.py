"""The worker's thread: passes while nothing holds it, commands in between; and its samples."""

import queue
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom.base.errors import ConfigError, ShortageError
from atom.models.data.sampler import Order, Sampler
from atom.models.data.samples import PiecesMissing
from atom.swap.host_store import StepFailed
from atom.training.replica import worker as worker_module
from atom.training.replica.engines import DeviceTaken
from atom.training.replica.pacing import SwarmCount
from atom.training.replica.worker import BatchLoader, Pause
from tests.training.worker_scene import WAIT_S, ShouldStop, WorkerScene


class Scene(WorkerScene):
    """A round of 24 sequences: one pass of six micro-batches, if nothing comes between."""

    def __init__(self) -> None:
        super().__init__(global_batch=24)
        self.endless, self.under_way = threading.Event(), threading.Event()
        self.replica.during_pass = self._until_told

    def _until_told(self, should_stop: ShouldStop) -> None:
        while self.endless.is_set() and not should_stop():
            self.under_way.set()

    def begin_endless_pass(self) -> None:
        self.endless.set()
        self.worker.release("starting")
        assert self.under_way.wait(WAIT_S)

    def counted(self) -> int:
        """Behind everything submitted."""
        count: int = self.on_worker(lambda: self.replica.sequences)
        return count


def failing(failure: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise failure

    return fail


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()
    assert scene.failures.empty()


def test_what_is_held_for_two_reasons_needs_both_released(scene: Scene) -> None:
    scene.replica.during_pass = lambda should_stop: scene.clock.advance(2.0)
    assert not scene.worker.wanted(), "it has not begun"
    scene.worker.hold("round")
    scene.worker.release("starting")
    assert scene.counted() == 0
    scene.worker.release("round")
    assert scene.passed.wait(WAIT_S)
    assert scene.counted() == 24, "alone it trains exactly the global batch, then waits"
    assert (scene.worker.rate(), scene.worker.pass_seconds) == (12.0, 2.0)
    assert scene.worker.passes_s == 2.0


def test_text_on_its_way_holds_passes_and_no_command(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, came, asked = scene.worker.loader, threading.Event(), threading.Event()
    draw = loader.draw

    def lacking(micro_batches: int) -> Any:
        if not came.is_set():
            asked.set()
            raise PiecesMissing("on their way")
        return draw(micro_batches)

    monkeypatch.setattr(loader, "draw", lacking)
    scene.worker.gate.why_no_text = lambda: "waits for text"
    scene.worker.release("starting")
    assert asked.wait(WAIT_S)
    assert scene.counted() == 0, "a command is carried out"
    assert scene.worker.gate.why_not == "waits for text"
    came.set()
    scene.worker.text_came()
    assert scene.passed.wait(WAIT_S)
    assert (scene.counted(), scene.worker.gate.why_not) == (24, "")


def test_it_is_free_for_something_else_while_nothing_is_in_its_way(scene: Scene) -> None:
    worker = scene.worker

    def is_free() -> bool:
        free: bool = scene.on_worker(lambda: worker.is_free)
        return free

    assert not is_free(), "it has not begun"
    worker.release("starting")
    assert is_free()
    worker.submit(lambda: worker.train_beyond(4))
    assert not is_free(), "a round is being decided"
    worker.submit(lambda: worker.train_beyond(None))
    assert is_free()
    worker.hold("round")
    assert not is_free()
    worker.release("round")
    worker.gate.pause(Pause.OWNER, "asked to", WAIT_S)
    assert not is_free()


def test_news_of_the_others_has_it_train_on(scene: Scene) -> None:
    begun: queue.SimpleQueue[None] = queue.SimpleQueue()

    def take_a_second(should_stop: ShouldStop) -> None:
        scene.clock.advance(1.0)
        begun.put(None)

    scene.replica.during_pass = take_a_second
    scene.worker.update_swarm(SwarmCount(0, 3, 100.0))
    scene.worker.release("starting")
    begun.get(timeout=WAIT_S)
    assert scene.counted() == 8, "its share"
    scene.worker.update_swarm(SwarmCount(4, 3, 101.5))
    begun.get(timeout=WAIT_S)
    assert scene.counted() == 12


@pytest.mark.parametrize("leaves", [False, True])
def test_beyond_what_is_averaged_it_trains_a_share_unless_it_leaves(
    scene: Scene, leaves: bool
) -> None:
    """Counts of other peers do not matter: they belong to the current round."""
    begun: queue.SimpleQueue[None] = queue.SimpleQueue()
    scene.replica.during_pass = lambda should_stop: begun.put(None)
    scene.worker.update_swarm(SwarmCount(24, 3, 100.0))
    scene.worker.release("starting")
    scene.on_worker()
    assert not scene.worker.wanted(), "the others have all that the round wants"
    scene.worker.ends_with_round = leaves
    scene.on_worker(lambda: scene.worker.train_beyond(0))
    if not leaves:
        begun.get(timeout=WAIT_S)
    assert scene.counted() == (0 if leaves else 8)
    assert not scene.worker.wanted()


def test_a_pause_breaks_the_pass_off_and_the_same_samples_come_again(scene: Scene) -> None:
    gate = scene.worker.gate
    scene.begin_endless_pass()
    assert gate.pause(Pause.SCHEDULE, "outside its hours", 2.0)
    assert gate.pause(Pause.OWNER, "by its owner", 1.0)
    assert scene.counted() == 0
    assert gate.why_not == "by its owner"
    assert gate.why_paused(Pause.SCHEDULE) == "outside its hours"
    assert scene.on_worker(lambda: scene.worker.wanted()), "if it were not paused"
    scene.endless.clear()
    gate.resume(Pause.OWNER)
    assert scene.counted() == 0
    gate.resume(Pause.SCHEDULE)
    assert scene.passed.wait(WAIT_S)
    assert gate.why_not == ""
    assert scene.loader.back == [6], "and no pass begins before that"
    assert scene.replica.engines.told == [2.0, 1.0, "resume"]


def test_a_pass_that_would_take_counted_work_with_it_is_finished(scene: Scene) -> None:
    scene.replica.breakable = False
    scene.begin_endless_pass()
    scene.worker.gate.pause(Pause.OWNER, "by its owner", 2.0)
    scene.endless.clear()
    assert scene.passed.wait(WAIT_S)
    assert scene.loader.back == []


def test_whatever_is_counted_closing_breaks_the_pass_off(scene: Scene) -> None:
    scene.replica.breakable = False
    scene.begin_endless_pass()
    scene.close()
    assert scene.replica.sequences == 0


def test_a_device_that_others_took_is_tried_for_now_and_then(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "RETRY_S", 0.2)
    scene.replica.during_pass, during_pass = (
        failing(DeviceTaken("scripted")), scene.replica.during_pass
    )  # fmt: skip
    scene.worker.release("starting")
    scene.on_worker()
    scene.on_worker()
    assert scene.worker.gate.why_not == "another program has the device's memory"
    assert scene.loader.back == [6], "not before its time"
    scene.replica.during_pass = during_pass
    assert scene.passed.wait(WAIT_S)
    scene.on_worker()
    assert scene.worker.gate.why_not == ""


@pytest.mark.parametrize(
    ("failure", "kind", "hint"),
    [
        (MemoryError(), ShortageError, "free host memory"),
        (StepFailed(MemoryError("in the step's thread")), ShortageError, "free host memory"),
        (ConfigError("sample 19 cannot be read", "look at it"), ConfigError, "look at it"),
        (RuntimeError("a bug"), RuntimeError, ""),
    ],
)
def test_a_failure_ends_the_thread_and_what_the_user_can_mend_is_named(
    scene: Scene, failure: Exception, kind: type[Exception], hint: str
) -> None:
    scene.replica.during_pass = failing(failure)
    scene.worker.release("starting")
    named = scene.failures.get(timeout=WAIT_S)
    assert isinstance(named, kind)
    assert hint in getattr(named, "hint", "")
    assert failure in (named, named.__cause__)


# ---- which samples it draws, from one round to the next


MEMBERS = ("a", "b", "c")
MICRO_BATCH = 2


def head(cursor: int, members: tuple[str, ...] = MEMBERS) -> Any:
    return SimpleNamespace(cursor=cursor, members=members)


def drawn(loader: BatchLoader, micro_batches: int) -> list[int]:
    return [int(place) for batch in loader.draw(micro_batches) for place in batch["tokens"]]


@pytest.fixture
def loader() -> BatchLoader:
    """Peer b's; a batch names the positions that it was drawn from."""
    samples: Any = SimpleNamespace(
        sampler=Sampler((Order(1000, 1000, 7),)),
        tokens_per_sample=16,
        batch=lambda positions: {"tokens": torch.tensor(positions)},
        pieces=set,
        need=lambda pieces: None,
    )
    loader = BatchLoader(samples, "b", MICRO_BATCH)
    loader.deal(head(0))
    return loader


def test_samples_that_are_on_their_way_are_drawn_later(loader: BatchLoader) -> None:
    """Samples before them are not drawn twice."""
    asked: list[set[int]] = []

    def need(pieces: set[int]) -> None:
        asked.append(pieces)
        if len(asked) == 1:
            raise PiecesMissing("on their way")

    samples: Any = loader._samples
    samples.need = need
    with pytest.raises(PiecesMissing):
        loader.draw(2)
    assert drawn(loader, 2) == [1, 4, 7, 10]
    assert asked == [{1, 4, 7, 10}] * 2, "of all micro-batches at once"


def test_a_round_is_dealt_from_its_first_on(loader: BatchLoader) -> None:
    assert drawn(loader, 2) == [1, 4, 7, 10]
    loader.deal(head(30))
    assert drawn(loader, 1) == [31, 34]


@pytest.mark.parametrize("longest", [2, 4, 10])
def test_who_goes_on_draws_nothing_twice(loader: BatchLoader, longest: int) -> None:
    """The round took two of our sequences, and so many of the largest contributor."""
    before = drawn(loader, 4)
    loader.deal(head(3 * longest), goes_on=True)
    assert drawn(loader, 1)[0] == max(before[-1] + 3, 3 * longest + 1)


def test_with_other_members_it_begins_beyond_what_it_drew(loader: BatchLoader) -> None:
    before = drawn(loader, 4)
    loader.deal(head(6, ("b", "c")), goes_on=True)
    after = drawn(loader, 2)
    assert after == [24, 26, 28, 30]
    assert before[-1] < after[0]


def test_a_guest_that_became_a_member_begins_with_its_first(loader: BatchLoader) -> None:
    loader.deal(head(0, ("a", "c")))
    drawn(loader, 4)
    loader.deal(head(12), goes_on=True)
    assert drawn(loader, 1) == [13, 16]
