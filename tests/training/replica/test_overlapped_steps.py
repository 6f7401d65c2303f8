"""A replica whose steps run under its next passes: the same bits, and nobody reads half a state."""

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.adamw import AdamW
from atom.optim.clipping import gradient_norm
from atom.optim.optimizer import Part, StepTerms
from atom.optim.rate import RateSettings
from atom.optim.stepper import Stepper
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.readiness import StepFailed
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock

WAIT_S = 20.0
RATE = RateSettings(1e-2, 1e-3, warmup_rounds=2, decay="cosine", rounds=10)
ARRANGEMENTS = pytest.mark.parametrize(
    "arrangement",
    [
        Arrangement(),
        Arrangement(2, frozenset({0, 3})),
        Arrangement(3, frozenset({1}), frozenset({1})),
    ],
    ids=["swapped", "resident", "kept"],
)


def config(dropout: float) -> GPT3Config:
    return GPT3Config(2, 2, 16, sequence_tokens=8, vocabulary_size=29, dropout=dropout)


def batches(count: int, seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: torch.randint(29, (2, 8), generator=generator) for name in ("tokens", "targets")}
        for _ in range(count)
    ]


@functools.cache
def program(dropout: float) -> Program:
    return compile_program(GPT3(config(dropout)), batches(1, 0)[0])


@pytest.fixture
def new_replica() -> Iterator[Callable[..., Replica]]:
    devices: list[CpuDevice] = []

    def make(arrangement: Arrangement | None = None) -> Replica:
        devices.append(CpuDevice())
        settings = ReplicaSettings(
            RATE, clip_norm=0.5, arrangement=arrangement or Arrangement(), dropout_seed=3
        )
        replica = Replica(program(0.1), program(0.0), settings, devices[-1], ManualClock())
        replica.initialise(functools.partial(initial_value, config(0.1), seed=11))
        return replica

    yield make
    for device in devices:
        device.close()


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


def state(replica: Replica) -> list[Tensor]:
    return [arena.clone() for arena in replica.state_arenas().values()]


def same(states: list[Tensor], others: list[Tensor]) -> bool:
    return all(map(torch.equal, states, others))


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
    assert same(state(under), state(between))


def begun(replica: Replica, gate: threading.Event) -> Tensor:
    """A step that the gate holds back; its gradient."""
    replica.run_pass(batches(1, 1))
    gate.clear()
    mean = replica.gradients / replica.sequences
    replica.begin_step(mean, gradient_norm(mean), 1)
    return mean


def export(replica: Replica) -> Any:
    return torch.cat([value.flatten() for value in replica.export_parameters().values()])


@pytest.mark.usefixtures("open_when_waited_for")
@pytest.mark.parametrize("read", [state, export], ids=["state", "export"])
def test_who_reads_the_state_waits_for_the_step(
    new_replica: Callable[..., Replica], gate: threading.Event, read: Callable[[Replica], Any]
) -> None:
    replica, whole = new_replica(), new_replica()
    mean = begun(replica, gate)
    got = read(replica)
    whole.apply(mean, gradient_norm(mean), 1)
    assert same(list(got), list(read(whole)))


@pytest.mark.usefixtures("open_when_waited_for")
def test_a_loaded_state_is_not_stepped_on(
    new_replica: Callable[..., Replica], gate: threading.Event
) -> None:
    replica, other = new_replica(), new_replica()
    begun(replica, gate)
    replica.load_state({n: arena + 1 for n, arena in other.state_arenas().items()}, 7)
    assert same(state(replica), [arena + 1 for arena in state(other)])
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
    assert same(state(replica), state(whole))


def test_a_step_begun_twice_is_one_step(
    new_replica: Callable[..., Replica], gate: threading.Event
) -> None:
    replica, whole = new_replica(), new_replica()
    gate.set()
    mean = begun(replica, gate)
    replica.begin_step(mean, gradient_norm(mean), 1)
    with pytest.raises(ValueError, match="does not follow"):
        replica.begin_step(mean, gradient_norm(mean), 3)
    gate.set()
    replica.finish_step()
    replica.begin_step(mean, gradient_norm(mean), 1)
    whole.apply(mean, gradient_norm(mean), 1)
    assert same(state(replica), state(whole))


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
    assert same(state(replica), state(whole))


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
    assert same(state(replica), state(whole))
