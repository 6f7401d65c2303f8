"""A replica whose steps run under its next passes: the same bits, and nobody reads half a state."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.optim.adamw import AdamW
from atom.optim.clipping import gradient_norm
from atom.optim.optimizer import Part, StepTerms
from atom.optim.stepper import Stepper
from atom.swap.arrangement import Arrangement
from atom.swap.readiness import StepFailed
from atom.training.replica.replica import Replica
from tests.training.conftest import NewDevice
from tests.training.small_replica import batches, filled, program, same

WAIT_S = 20.0
ARRANGEMENTS = pytest.mark.parametrize(
    "arrangement",
    [
        Arrangement(),
        Arrangement(2, frozenset({0, 3})),
        Arrangement(3, frozenset({1}), frozenset({1})),
    ],
    ids=["swapped", "resident", "kept"],
)


@pytest.fixture
def new_replica(new_device: NewDevice) -> Callable[..., Replica]:
    def make(arrangement: Arrangement | None = None) -> Replica:
        settings: Any = {"arrangement": arrangement or Arrangement(), "clip_norm": 0.5}
        return filled(new_device(), program(0.1), program(), **settings)

    return make


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Closed, it keeps every step from updating anything."""
    gate, update = threading.Event(), AdamW.update

    def gated(adamw: AdamW, part: Part, gradient: Tensor, step: StepTerms) -> None:
        assert gate.wait(WAIT_S)
        update(adamw, part, gradient, step)

    monkeypatch.setattr(AdamW, "update", gated)
    return gate


@pytest.fixture
def open_when_waited_for(monkeypatch: pytest.MonkeyPatch, gate: threading.Event) -> None:
    """The gate opens as soon as somebody waits for the end of a step."""
    rest = Stepper.rest

    def opening(stepper: Stepper) -> None:
        gate.set()
        rest(stepper)

    monkeypatch.setattr(Stepper, "rest", opening)


@ARRANGEMENTS
def test_steps_under_passes_give_the_bits_of_steps_between_them(
    new_replica: Callable[..., Replica], arrangement: Arrangement
) -> None:
    under, between = new_replica(arrangement), new_replica(arrangement)
    for round in range(1, 6):
        for replica in (under, between):
            replica.reset_gradients()
            replica.run_pass(batches(2, round))
            replica.run_pass(batches(1, 10 + round))
        assert torch.equal(under.gradients, between.gradients)
        mean = between.gradients / between.sequences
        own = under.gradients.div_(under.sequences)  # its own arena, which passes write, too
        between.apply(mean, gradient_norm(mean), round)
        under.begin_step(own, gradient_norm(own), round)
        assert under.round == between.round == round
        if round % 2:
            assert under.evaluate(batches(3, 5)) == between.evaluate(batches(3, 5))
    assert same(under, between)


def begun(replica: Replica, gate: threading.Event) -> Tensor:
    """A step that the gate holds back; its gradient."""
    replica.run_pass(batches(1, 1))
    gate.clear()
    mean = replica.gradients / replica.sequences
    replica.begin_step(mean, gradient_norm(mean), 1)
    return mean


@pytest.mark.usefixtures("open_when_waited_for")
def test_who_reads_the_state_waits_for_the_step(
    new_replica: Callable[..., Replica], gate: threading.Event
) -> None:
    for read in (Replica.state_arenas, Replica.export_parameters):
        replica, whole = new_replica(), new_replica()
        mean = begun(replica, gate)
        got = {name: value.clone() for name, value in read(replica).items()}
        whole.apply(mean, gradient_norm(mean), 1)
        assert all(torch.equal(got[name], value) for name, value in read(whole).items())


@pytest.mark.usefixtures("open_when_waited_for")
def test_a_loaded_state_is_not_stepped_on(
    new_replica: Callable[..., Replica], gate: threading.Event
) -> None:
    replica, other = new_replica(), new_replica()
    begun(replica, gate)
    replica.load_state({n: arena + 1 for n, arena in other.state_arenas().items()}, 7)
    for name, arena in other.state_arenas().items():
        assert torch.equal(replica.state_arenas()[name], arena + 1)
    assert replica.round == 7


@pytest.mark.usefixtures("open_when_waited_for")
def test_cleared_gradients_are_zeros_when_the_step_has_read_them(
    new_replica: Callable[..., Replica], gate: threading.Event
) -> None:
    replica, whole = new_replica(), new_replica()
    for each in (replica, whole):
        each.run_pass(batches(1, 1))
        each.gradients.div_(each.sequences)
    whole.apply(whole.gradients, 1.0, 1)
    gate.clear()
    replica.begin_step(replica.gradients, 1.0, 1)
    replica.reset_gradients()
    assert not replica.gradients.any()
    assert same(replica, whole)


def test_a_step_that_breaks_off_surfaces_at_every_call_until_a_state_is_loaded(
    new_replica: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, whole = new_replica(), new_replica()
    replica.run_pass(batches(1, 1))
    mean = replica.gradients / replica.sequences
    update, updates = AdamW.update, itertools.count()

    def failing(adamw: AdamW, part: Part, gradient: Tensor, step: StepTerms) -> None:
        if next(updates) == 4:
            raise MemoryError("no room")
        update(adamw, part, gradient, step)

    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "update", failing)
        replica.begin_step(mean, gradient_norm(mean), 1)
        calls: list[Callable[[], Any]] = [
            lambda: replica.evaluate(batches(1, 2)),
            lambda: replica.run_pass(batches(1, 2)),
            lambda: replica.begin_step(mean, gradient_norm(mean), 1),
            replica.finish_step,
            replica.state_arenas,
            replica.export_parameters,
        ]
        for call in calls:
            with pytest.raises(StepFailed, match="MemoryError: no room"):
                call()
    assert replica.torn
    replica.load_state(whole.state_arenas(), 0)
    assert not replica.torn
    for each in (replica, whole):
        each.apply(mean, gradient_norm(mean), 1)
    assert same(replica, whole)


def test_a_cancelled_pass_leaves_the_step_alone(
    new_replica: Callable[..., Replica], gate: threading.Event
) -> None:
    replica, whole = new_replica(), new_replica()
    gate.set()
    mean = begun(replica, gate)
    replica.reset_gradients()
    with ThreadPoolExecutor(1) as worker:
        cancelled: Future[Any] = worker.submit(replica.run_pass, batches(1, 3), lambda: True)
        gate.set()
        with pytest.raises(Exception, match="cancelled"):
            cancelled.result(WAIT_S)
    whole.apply(mean, gradient_norm(mean), 1)
    assert same(replica, whole)
