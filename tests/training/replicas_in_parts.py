"""Three replicas that each hold some of the optimizer's state, and their rounds without a
network."""

from typing import Any

import pytest
import torch
from torch import Tensor

from atom.optim import clipping, state_in_parts
from atom.optim.clipping import gradient_norm
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.state.part_rows import Row
from atom.training.replica.replica import Replica
from atom.training.storage.parts_results import PartsResult
from tests.swarm.means import encoded
from tests.training.conftest import NewDevice
from tests.training.small_replica import FIRST_VALUE, filled, program

EXACT = codec_named("float32")


def cut_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "BLOCK_ELEMENTS", 512)
    monkeypatch.setattr(clipping, "LANES", 64)
    monkeypatch.setattr(state_in_parts, "BLOCK_ELEMENTS", 512)


def three(new_device: NewDevice, **settings: Any) -> list[Replica]:
    """Two hold each part."""
    of = program(precision=settings.get("precision", torch.float32))
    made = [filled(new_device(), of, in_parts=True, **settings) for _ in range(3)]
    for rank, replica in enumerate(made):
        for part in range(replica.parts.held.parts.count):
            if rank in (part % 3, (part + 1) % 3):
                replica.parts.held.hold(part)
        replica.initialise(FIRST_VALUE)
    return made


def step_in_parts(
    replicas: list[Replica], mean: Tensor, round: int, precision: torch.dtype
) -> PartsResult:
    """All of them, on the same mean; each part is made by the first that holds it. Passes go on
    under the step. What a peer has that holds all and needs nothing."""
    parts, works = (
        replicas[0].parts.held.parts,
        [each.parts.step(EXACT, round, lambda means: None) for each in replicas],
    )
    means = dict[int, EncodedMean]()
    for part, (start, stop) in enumerate(map(parts.range, range(parts.count))):
        means[part] = encoded(mean[start:stop])
    for work in works:
        work.averaged(means)
    sums = b"".join(works[0].sums_of(part, each) for part, each in means.items())
    for work in works:
        work.decide(sums)
    assert {work.norm for work in works} == {gradient_norm(mean)}
    made = dict[int, tuple[Tensor, bytes]]()
    for part, mean_of_part in means.items():
        holds = (part in each.parts.held.held for each in replicas)
        maker = next(work for work, able in zip(works, holds, strict=True) if able)
        made[part] = maker.make(part, mean_of_part, False)
    rows = tuple(Row.of(row) for _, row in made.values())
    loaded = {part: each.view(precision) for part, (each, _) in made.items()}
    result = PartsResult(rows, means, loaded)
    for replica in replicas:
        decided = result.numbers(EXACT, parts, replica.parts.held.held)
        replica.begin_step(decided, works[0].norm, round)
        replica.reset_gradients()
    return result
