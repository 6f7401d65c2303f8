"""Each form of the state trains, at every schedule and in every precision, and moves between
replicas and disks, bit for bit."""

import functools
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.optim import optimizer
from atom.optim.adamw import AdamW
from atom.optim.rate import RateSettings
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.state_form import StateForm
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from atom.training.storage.run_storage import write_snapshot
from tests.training.small_replica import (
    FIRST_VALUE,
    apply,
    batches,
    filled,
    program,
    same,
    step_once,
)

NARROW = torch.bfloat16
FORMS = pytest.mark.parametrize("form", StateForm)
PRECISIONS = [
    (torch.float32, StateForm.EXACT),
    (torch.float16, StateForm.EXACT),
    *((NARROW, form) for form in StateForm),
]
STRETCHES = range(1, 3), range(3, 5)
SOME, ALL = frozenset({1, 3}), frozenset(range(4))
SCHEDULES = {
    "three slots": Arrangement(3),
    "residents": Arrangement(resident=SOME),
    "kept": Arrangement(resident=SOME, kept=SOME),
    "values on the host": Arrangement(offloaded=ALL, least_offloaded_bytes=0),
    "some of them": Arrangement(
        3, frozenset({2}), offloaded=frozenset({0}), least_offloaded_bytes=0
    ),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step has several."""
    monkeypatch.setattr(optimizer, "PIECE_ELEMENTS", 500)


def new_replica(
    device: CpuDevice, form: StateForm, precision: torch.dtype = NARROW, **settings: Any
) -> Replica:
    plan = {"optimizer": AdamW(seed=3), "clip_norm": 0.5, "micro_batches": 3}
    programs = program(0.1, precision), program(0.0, precision)
    rate = RateSettings(1e-2)
    given = {"rate": rate, "precision": precision, "state_form": form, **plan, **settings}
    return filled(device, *programs, **given)


def train(replica: Replica, rounds: Sequence[int], under: bool = False) -> list[float]:
    """Two passes a round. `under`: its step runs under the next round's first pass."""
    losses = []
    for round in rounds:
        replica.reset_gradients()
        replica.run_pass(batches(3, round % 3))
        replica.run_pass(batches(1, round % 3 + 50))
        losses.append(replica.loss_sum)
        replica.begin_own_step()
        if not under:
            replica.finish_step()
    return losses


@functools.cache
def plainly(
    precision: torch.dtype, form: StateForm
) -> tuple[list[tuple[list[float], float, Tensor]], bytes]:
    """Swapped, with the step between the passes: after each stretch of rounds the losses, that of
    an evaluation and the gradients; and the state's digest at the end."""
    with closing(CpuDevice()) as device:
        replica = new_replica(device, form, precision)
        told = [
            (
                train(replica, rounds),
                replica.evaluate(batches(2, 9)),
                replica.gradient_sums().clone(),
            )
            for rounds in STRETCHES
        ]
        return told, state_digest(replica.state_arenas())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("precision", "form"), PRECISIONS)
def test_no_schedule_shows_in_any_form(
    device: CpuDevice, precision: torch.dtype, form: StateForm, schedule: str
) -> None:
    """Plainly swapped, with the step between the passes, float32 is plain PyTorch's
    (`test_replica.py`), as are 16 bits (`test_swap_benchmark.py`)."""
    other = new_replica(device, form, precision, arrangement=SCHEDULES[schedule])
    plain, digest = plainly(precision, form)
    for rounds, (losses, loss, sums) in zip(STRETCHES, plain, strict=True):
        assert train(other, rounds, under=True) == losses
        assert other.evaluate(batches(2, 9)) == loss
        assert torch.equal(other.gradient_sums(), sums)
    assert state_digest(other.state_arenas()) == digest


@FORMS
def test_a_restored_replica_goes_on_alike(
    device: CpuDevice, form: StateForm, tmp_path: Path
) -> None:
    one, restored = new_replica(device, form), new_replica(device, form)
    for name, weight in one.export_parameters().items():
        assert torch.equal(weight, FIRST_VALUE(name, tuple(weight.shape))), name
    train(one, range(1, 4))
    digest = state_digest(one.state_arenas())
    snapshot = write_snapshot(tmp_path, 3, b"h" * 32, digest, one.state_arenas())
    state_bytes = sum(arena.nbytes for arena in one.state_arenas().values())
    assert state_bytes == sum(arena.size_bytes for arena in one.state_form.values())
    restored.load_state(snapshot.checked(digest), 3)
    assert restored.evaluate(batches(2, 9)) == one.evaluate(batches(2, 9))
    mean = step_once(one, batches(1, 4), 4)
    apply(restored, mean, 4)
    assert same(one, restored)
    for another in set(StateForm) - {form}:
        other = new_replica(device, another)
        with pytest.raises(ValueError, match="does not fit"):
            other.load_state(one.state_arenas(), 4)
        assert same(other, new_replica(device, another))
