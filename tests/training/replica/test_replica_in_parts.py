"""Replicas that each hold some of the optimizer's state train as one that holds all of it."""

import pytest
import torch

from atom.swap.state_form import StateForm
from tests.training.conftest import NewDevice
from tests.training.replicas_in_parts import cut_fine, step_in_parts, three
from tests.training.small_replica import batches, filled, program, step_once


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_fine(monkeypatch)


@pytest.mark.parametrize(
    ("precision", "form"),
    [(torch.float32, StateForm.EXACT), (torch.bfloat16, StateForm.EXACT),
     (torch.bfloat16, StateForm.SPLIT), (torch.bfloat16, StateForm.HALF)],
)  # fmt: skip
def test_they_train_as_one_that_holds_all(
    new_device: NewDevice, precision: torch.dtype, form: StateForm
) -> None:
    settings = {"precision": precision, "state_form": form, "clip_norm": 0.1}
    whole = filled(new_device(), program(precision=precision), **settings)
    some = three(new_device, **settings)
    for round in (1, 2, 3):
        given = batches(2, seed=round)
        for replica in some:
            replica.run_pass(given)
        mean = step_once(whole, given, round)
        assert all(torch.equal(each.gradient_sums() / 4, mean) for each in some)
        step_in_parts(some, mean, round, precision)
    for replica in some:
        replica.finish_step()
        [(name, loaded)] = replica.state_arenas().items()
        theirs = whole.state_arenas()
        assert torch.equal(loaded, theirs[name] if name in theirs else theirs["master"].bfloat16())
        for part in replica.parts.held.held:
            start, stop = replica.parts.held.parts.range(part)
            for name, arena in replica.parts.held.of(part).items():
                assert torch.equal(arena, whole.state_arenas()[name][start:stop])
