"""Replicas whose devices take different shares of the optimizer's step stay bit-identical."""

import functools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim import step as step_module
from atom.optim.adamw import AdamWSettings
from atom.optim.device_adamw import DeviceAdamW
from atom.optim.open_share import WantedShare
from atom.optim.rate import RateSettings
from atom.optim.turns import Turns
from atom.swap.device import CpuDevice
from atom.swap.readiness import StepFailed
from atom.swap.state_form import StateForm
from atom.swap.workbench import CpuWorkbench, Pair, Workbench
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock

CONFIG = GPT3Config(2, 2, 16, sequence_tokens=8, vocabulary_size=29)
FORMS = [(torch.float32, StateForm.EXACT), *((torch.bfloat16, form) for form in StateForm)]


@functools.cache
def program(precision: torch.dtype) -> Program:
    return compile_program(GPT3(CONFIG, dtype=precision), batches(0))


def batches(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randint(29, (2, 8), generator=generator) for n in ("tokens", "targets")}


class Benched(CpuDevice):
    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        self._bench = bench

    def workbench(self) -> Workbench:
        return self._bench


@pytest.fixture(autouse=True)
def host_keeps_to_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces this small it would all have taken before the device has begun."""

    def own(turns: Turns) -> int | None:
        return turns._host.popleft() if turns._host else None

    monkeypatch.setattr(Turns, "host", own)


Make = Callable[..., tuple[Replica, list[str]]]


@pytest.fixture
def new_replica(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A replica with a share of its own, and what is told of it."""
    monkeypatch.setattr(step_module, "PIECE_ELEMENTS", 100)
    devices: list[CpuDevice] = []

    def make(
        share: float,
        form: StateForm = StateForm.EXACT,
        precision: torch.dtype = torch.float32,
        bench: Workbench | None = None,
    ) -> tuple[Replica, list[str]]:
        devices.append(Benched(bench or CpuWorkbench()))
        told = list[str]()
        settings = ReplicaSettings(
            RateSettings(1e-2), AdamWSettings(seed=3), clip_norm=0.5, precision=precision,
            state_form=form, step_share=WantedShare(share, told.append, least_elements=1),
        )  # fmt: skip
        replica = Replica(program(precision), None, settings, devices[-1], ManualClock())
        replica.initialise(functools.partial(initial_value, CONFIG, seed=11))
        return replica, told

    yield make
    for device in devices:
        device.close()


def train(replica: Replica, rounds: range) -> None:
    """Each step under the next round's pass; the gradient is the arena that this pass writes."""
    for round in rounds:
        replica.reset_gradients()
        replica.run_pass([batches(round), batches(round + 50)])
        sums = replica.gradients
        replica.begin_step(sums, replica.gradient_norm(), round, replica.sequences)


def same(one: Replica, other: Replica) -> bool:
    pairs = zip(one.state_arenas().values(), other.state_arenas().values(), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.parametrize(("precision", "form"), FORMS)
def test_shares_do_not_show(new_replica: Make, precision: torch.dtype, form: StateForm) -> None:
    (host, _), (half, told), (most, _) = (
        new_replica(share, form, precision) for share in (0.0, 0.5, 1.0)
    )
    before = half.streamed_parameters
    for replica in (host, half, most):
        train(replica, range(1, 5))
    assert same(host, half)
    assert same(host, most)
    assert host.streamed_parameters == 0
    assert half.streamed_parameters > before
    assert told == []


def test_a_device_that_runs_out_of_memory_in_the_middle_of_a_step_is_told_and_left_alone(
    new_replica: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host, _), (half, told) = new_replica(0.0), new_replica(0.5)
    update, calls = DeviceAdamW.update, iter(range(10**6))

    def failing(*arguments: object, **named: object) -> None:
        if next(calls) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        update(*arguments, **named)  # type: ignore[arg-type]

    for replica in (host, half):
        train(replica, range(1, 3))
    monkeypatch.setattr(DeviceAdamW, "update", failing)
    for replica in (host, half):
        train(replica, range(3, 6))
    assert same(host, half)
    assert told == ["CUDA out of memory. Tried to allocate 2 GiB."]
    assert next(calls) == 5, "it was asked again"


class Unwritable(CpuWorkbench):
    """Nothing comes back any more once it is told so."""

    broken = False

    def take_back(self, place: int, pairs: list[Pair]) -> None:  # type: ignore[override]
        if self.broken:
            super().take_back(place, pairs[:1])
            raise RuntimeError("the device is gone")
        super().take_back(place, pairs)


def test_half_written_weights_are_never_used(new_replica: Make) -> None:
    bench = Unwritable()
    (host, _), (half, told) = new_replica(0.0), new_replica(1.0, bench=bench)
    for replica in (host, half):
        train(replica, range(1, 3))
        replica.finish_step()
    bench.broken = True
    train(half, range(3, 4))
    with pytest.raises(StepFailed, match="the device is gone"):
        half.finish_step()
    assert told == ["the device is gone"]
    with pytest.raises(StepFailed):
        half.run_pass([batches(9)])
    with pytest.raises(StepFailed):
        half.state_arenas()
    bench.broken = False
    half.load_state(host.state_arenas(), 2)  # as from a peer, or from disk
    for replica in (host, half):
        train(replica, range(3, 5))
    assert same(host, half)
