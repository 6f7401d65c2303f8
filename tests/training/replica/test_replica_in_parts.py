"""Replicas that each hold some of the optimizer's state train as one that holds all of it."""

import pytest
import torch
from torch import Tensor

from atom.optim import clipping, state_in_parts
from atom.optim.clipping import gradient_norm
from atom.swap.state_form import StateForm
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.encoded import EncodedMean
from atom.training.replica.replica import Replica
from atom.training.storage.parts_results import PartsResult
from tests.swarm.means import encoded
from tests.training.conftest import NewDevice
from tests.training.small_replica import FIRST_VALUE, batches, filled, program, step_once

EXACT = codec_named("float32")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", 512)
    monkeypatch.setattr(clipping, "LANES", 64)
    monkeypatch.setattr(state_in_parts, "BLOCK_ELEMENTS", 512)


def step_in_parts(
    replicas: list[Replica], mean: Tensor, round: int, precision: torch.dtype
) -> None:
    """All of them, on the same mean; each part is made by the first that holds it. Passes go on
    under the step."""
    parts, works = replicas[0].held.parts, [each.parts_step(EXACT) for each in replicas]
    means = dict[int, EncodedMean]()
    for part, (start, stop) in enumerate(map(parts.range, range(parts.count))):
        means[part] = encoded(mean[start:stop])
    sums = b"".join(works[0].sums_of(part, each) for part, each in means.items())
    for work in works:
        work.decide(sums)
    assert {work.norm for work in works} == {gradient_norm(mean)}
    made = dict[int, tuple[Tensor, bytes]]()
    for part, mean_of_part in means.items():
        holds = (part in each.held.held for each in replicas)
        maker = next(work for work, able in zip(works, holds, strict=True) if able)
        made[part] = maker.make(part, mean_of_part)
    rows = tuple(row for _, row in made.values())
    for replica in replicas:
        loaded = {p: each.view(precision) for p, (each, _) in made.items()}
        decided = PartsResult(rows, means, loaded).numbers(EXACT, parts, replica.held.held)
        replica.begin_step(decided, works[0].norm, round)
        replica.reset_gradients()


@pytest.mark.parametrize(
    ("precision", "form"),
    [(torch.float32, StateForm.EXACT), (torch.bfloat16, StateForm.SPLIT),
     (torch.bfloat16, StateForm.HALF)],
)  # fmt: skip
def test_they_train_as_one_that_holds_all(
    new_device: NewDevice, precision: torch.dtype, form: StateForm
) -> None:
    settings = {"precision": precision, "state_form": form, "clip_norm": 0.1}
    whole = filled(new_device(), program(precision=precision), **settings)
    some = [
        filled(new_device(), program(precision=precision), in_parts=True, **settings)
        for _ in range(3)
    ]
    for rank, replica in enumerate(some):
        for part in range(replica.held.parts.count):
            if rank in (part % 3, (part + 1) % 3):
                replica.held.hold(part)
        replica.initialise(FIRST_VALUE)
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
        assert torch.equal(loaded, whole.state_arenas()[name])
        for part in replica.held.held:
            start, stop = replica.held.parts.range(part)
            for name, arena in replica.held.of(part).items():
                assert torch.equal(arena, whole.state_arenas()[name][start:stop])
