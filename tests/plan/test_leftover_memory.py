"""Spare memory trains sub-models on the device, first ones first, without slower passes."""

import random
from dataclasses import replace

import pytest
from small_chains import MACHINE, plenty, random_chain

from atom.plan.choice import HostStep
from atom.plan.choosing import NEARLY, Question, choose, enough_bytes
from atom.plan.memory import Cut, Limits
from atom.plan.residency import arrangements

STATE_BYTES = 20


@pytest.mark.parametrize("seed", range(20))
def test_leftover_memory_trains_as_many_as_fit_and_slows_no_pass(seed: int) -> None:
    pick = random.Random(seed)
    chain, limits = random_chain(pick), Limits(0, pick.choice((2, 4)), pick.randint(1, 8))
    elements = sum({n: e for o in chain.operations for n, e in o.parameters.items()}.values())
    least = enough_bytes(Question(chain, MACHINE, limits))
    most = max(least, plenty(chain, limits)) + STATE_BYTES * elements
    trained = []
    for step in range(5):
        having = replace(limits, device_bytes=least + (most - least) * step // 4)
        plain = choose(Question(chain, MACHINE, having))
        choice = choose(
            Question(chain, MACHINE, replace(having, trained_element_bytes=STATE_BYTES))
        )
        arrangement, pieces = choice.arrangement, choice.cut.pieces
        assert plain.memory.trained_bytes == 0
        assert choice.memory.total_bytes <= having.device_bytes
        assert choice.memory.trained_bytes == STATE_BYTES * choice.trained_elements
        assert arrangement.trained <= arrangement.resident
        assert (
            choice.seconds_per_micro_batch <= (1 + NEARLY) * plain.seconds_per_micro_batch + 1e-12
        )
        used = [
            n for s, p in enumerate(pieces) if s not in arrangement.trained for n in p.parameters
        ]
        assert choice.trained_elements <= elements - sum(
            {n: e for o in chain.operations for n, e in o.parameters.items() if n in used}.values()
        )
        trained.append(choice.trained_elements)
    assert trained[-1] == elements
    assert choice.timeline.busy_s("load") == choice.timeline.busy_s("gradients") == 0
    assert choice.passes_s(1, HostStep(1.0, 30.0)) == choice.timeline.seconds


def test_those_that_share_a_parameter_are_trained_together_and_first_ones_first() -> None:
    for seed in range(20):
        chain = random_chain(random.Random(seed))
        limits = Limits(plenty(chain, Limits(0, 2, 1)), 2, 1, trained_element_bytes=1)
        ends = tuple(range(1, len(chain.operations) + 1))
        cut = Cut.of(chain, MACHINE, limits, ends)
        for arrangement in arrangements(cut):
            for name in {name for piece in cut.pieces for name in piece.parameters}:
                users = {s for s, piece in enumerate(cut.pieces) if name in piece.parameters}
                assert users <= arrangement.trained or not users & arrangement.trained
