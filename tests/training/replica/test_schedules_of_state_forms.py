"""Every form of the state at every schedule: the same bits, and no growth over many steps."""

import functools
import gc
import threading
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim import optimizer
from atom.optim.adamw import AdamW
from atom.optim.rate import RateSettings
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.state_form import StateForm
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock

FORMS = [
    (torch.float32, StateForm.EXACT),
    (torch.float16, StateForm.EXACT),
    *((torch.bfloat16, form) for form in StateForm),
]
SOME = frozenset({1, 3})
SCHEDULES = {
    "three slots": Arrangement(3),
    "residents": Arrangement(resident=SOME),
    "kept": Arrangement(resident=SOME, kept=SOME),
    "values on the host": Arrangement(offloaded=frozenset(range(4)), least_offloaded_bytes=0),
    "some of them": Arrangement(
        3, frozenset({2}), offloaded=frozenset({0}), least_offloaded_bytes=0
    ),
}


class CountingDevice(CpuDevice):
    """How often memory was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def host_memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        self.taken += 1
        return super().host_memory(elements, dtype)

    def slot_memory(self, elements: int, dtype: torch.dtype) -> Tensor:
        self.taken += 1
        return super().slot_memory(elements, dtype)


def config(dropout: float) -> GPT3Config:
    return GPT3Config(2, 2, 16, sequence_tokens=8, vocabulary_size=29, dropout=dropout)


def batches(count: int, seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {name: torch.randint(29, (2, 8), generator=generator) for name in ("tokens", "targets")}
        for _ in range(count)
    ]


@functools.cache
def program(precision: torch.dtype, dropout: float) -> Program:
    return compile_program(GPT3(config(dropout), dtype=precision), batches(1, 0)[0])


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingDevice]:
    monkeypatch.setattr(optimizer, "PIECE_ELEMENTS", 500)  # so that a step has several
    device = CountingDevice()
    yield device
    device.close()


def new_replica(
    device: CpuDevice, precision: torch.dtype, form: StateForm, schedule: str | None = None
) -> Replica:
    """`None`: swapped through two slots, the step on the host."""
    settings = ReplicaSettings(
        RateSettings(1e-2),
        AdamW(seed=3),
        clip_norm=0.5,
        precision=precision,
        arrangement=SCHEDULES[schedule] if schedule else Arrangement(),
        micro_batches=3,
        dropout_seed=5,
        state_form=form,
    )
    programs = program(precision, 0.1), program(precision, 0.0)
    made = Replica(*programs, settings, device, ManualClock())
    made.initialise(functools.partial(initial_value, config(0.1), seed=11))
    return made


def train(replica: Replica, rounds: Sequence[int], under: bool) -> list[float]:
    """Two passes a round. `under`: its step runs under the next round's first pass."""
    losses = []
    for round in rounds:
        replica.reset_gradients()
        replica.run_pass(batches(3, round))
        replica.run_pass(batches(1, round + 50), last=True)
        losses.append(replica.loss_sum)
        replica.begin_step(replica.gradients, replica.gradient_norm(), round, replica.sequences)
        if not under:
            replica.finish_step()
    return losses


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("precision", "form"), FORMS)
def test_no_schedule_shows_in_any_form(
    device: CountingDevice, precision: torch.dtype, form: StateForm, schedule: str
) -> None:
    """Plainly swapped, with the step between the passes, float32 is plain PyTorch's
    (`test_replica.py`), as are 16 bits (`test_swap_benchmark.py`)."""
    plain = new_replica(device, precision, form)
    other = new_replica(device, precision, form, schedule)
    rounds = range(1, 3)
    assert train(other, rounds, under=True) == train(plain, rounds, under=False)
    assert torch.equal(other.gradients, plain.gradients)
    for name, arena in plain.state_arenas().items():
        assert torch.equal(other.state_arenas()[name], arena), name
    assert other.evaluate(batches(2, 9)) == plain.evaluate(batches(2, 9))


def test_two_hundred_steps_take_no_more_than_three(device: CountingDevice) -> None:
    """Tensors alive and their bytes, threads, and memory asked of the device."""
    earlier, others = tensors_alive(), set(threading.enumerate())  # none of these goes meanwhile
    replica = new_replica(device, torch.bfloat16, StateForm.HALF, "some of them")
    held = list[tuple[int, int, int, int]]()
    for round in range(1, 201):
        replica.reset_gradients()
        replica.run_pass(batches(1, round), last=True)
        replica.begin_step(replica.gradients, replica.gradient_norm(), round, replica.sequences)
        if round in (3, 200):
            replica.finish_step()
            alive = tensors_alive()
            size_bytes = sum(each.untyped_storage().nbytes() for each in alive)
            threads = len(set(threading.enumerate()) - others)
            held.append((len(alive), size_bytes, threads, device.taken))
            del alive
    assert held[0] == held[1]
    assert held[0][0] > len(earlier)


def tensors_alive() -> list[Tensor]:
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
