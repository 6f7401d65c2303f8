"""Rounds reckoned from a pass: more of anything good never makes them longer."""

import random
from dataclasses import replace
from typing import Any

import pytest
from small_chains import MACHINE, layer_ends, random_chain

from atom.graph.chain import Chain, Operation
from atom.placement.choice import Choice
from atom.placement.choosing import Question, choose
from atom.placement.memory import Cut, Limits
from atom.placement.prediction import RoundPrediction, Work, gain, predict
from atom.swap.arrangement import Arrangement

WORK = Work(
    parameters=10**6,
    round_sequences=64,
    micro_batch_sequences=4,
    sequence_tokens=16,
    peers=4,
    inner_sequences=None,
    optimizer_elements_per_s=1e8,
    network_bytes_per_s=1e6,
    gradient_element_bytes=4,
    steps_beside=True,
)
SECONDS = replace(WORK, optimizer_elements_per_s=1e6, steps_beside=False)
"""A step takes a second, an exchange of 4 peers 2 (4 - 1) / 4 x 4 = 6 seconds."""
LOCAL = replace(SECONDS, inner_sequences=4)


def chosen(seed: int) -> Choice:
    pick = random.Random(seed)
    chain = random_chain(pick)
    return choose(Question(chain, MACHINE, Limits(200_000, 4, 4), layer_ends(chain, pick)))


def a_second_each() -> Choice:
    """A pass of two micro-batches takes two seconds."""
    only = Operation("only", {}, 0.25, 0.75, 0, 0)
    cut = Cut.of(Chain((only,), ()), MACHINE, Limits(0, 4, micro_batches=2), (1,))
    return Choice(cut, Arrangement())


def test_a_round_by_hand() -> None:
    choice = chosen(0)
    found = predict(choice, WORK)
    assert found.accumulate_s == pytest.approx(4 * choice.seconds_per_micro_batch)
    assert found.all_reduce_s == pytest.approx(2 * 3 / 4 * 4e6 / 1e6)
    assert found.optimizer_s == pytest.approx(0.01)
    assert found.round_s == found.accumulate_s + found.optimizer_wait_s + found.all_reduce_s
    alone = predict(choice, replace(WORK, steps_beside=False))
    assert alone.optimizer_wait_s == alone.optimizer_s
    assert found.swarm_tokens_per_s == pytest.approx(64 * 16 / found.round_s)
    assert found.passes * choice.micro_batches >= 4 > (found.passes - 1) * choice.micro_batches


def test_passes_that_wait_for_the_exchange_add_to_it() -> None:
    """16 sequences of this peer are 4 micro-batches: 4 s, 1 s of a step, 6 s of the line."""
    found = predict(a_second_each(), SECONDS)
    assert (found.passes, found.steps) == (2, 1)
    assert (found.passes_s, found.round_s) == (5, 11)
    assert found.utilisation == 5 / 11
    assert found.line_bytes == 6e6
    assert found.line_bytes_per_day == pytest.approx(6e6 * 86400 / 11)


@pytest.mark.parametrize(
    ("bytes_per_s", "round_s", "utilisation"), [(1e6, 9.0, 1.0), (0.5e6, 12.0, 0.75)]
)
def test_passes_that_go_on_under_the_exchange_hide_it(
    bytes_per_s: float, round_s: float, utilisation: float
) -> None:
    """4 inner steps and the outer one: 4 s and 5 steps of a second, beside the line's seconds."""
    found = predict(a_second_each(), replace(LOCAL, network_bytes_per_s=bytes_per_s))
    assert (found.steps, found.passes_s) == (5, 9)
    assert (found.round_s, found.utilisation) == (round_s, utilisation)


def test_what_the_swarm_has_of_a_peer() -> None:
    """Alone 16 micro-batches and a step: 17 s. Three take 6, a step and 16 / 3 s of the line."""
    found = gain(a_second_each(), SECONDS)
    assert found.swarm == pytest.approx(1024 / 11)
    assert found.alone == pytest.approx(1024 / 17)
    assert found.without == pytest.approx(1024 / (7 + 16 / 3))
    assert found.times_alone == pytest.approx(17 / 11)


def test_on_a_thin_line_the_swarm_is_faster_without_this_peer() -> None:
    thin = replace(SECONDS, network_bytes_per_s=1e4)
    joined = gain(a_second_each(), thin)
    assert joined.swarm < joined.without < joined.alone
    alone = gain(a_second_each(), replace(thin, peers=1))
    assert (alone.without, alone.times_alone) == (0, 1)


@pytest.mark.parametrize("seed", range(10))
def test_predictions_are_monotone(seed: int) -> None:
    choice = chosen(seed)

    def of(**changes: Any) -> RoundPrediction:
        return predict(choice, replace(WORK, **changes))

    usual, host = of(), of(steps_beside=False)
    assert of(network_bytes_per_s=2e6).round_s < usual.round_s
    twice = of(steps_beside=False, optimizer_elements_per_s=2e8)
    assert twice.round_s < host.round_s
    assert of(optimizer_elements_per_s=2e8).round_s <= usual.round_s <= host.round_s
    assert of(gradient_element_bytes=2).round_s < usual.round_s
    larger = of(round_sequences=128)
    assert larger.round_s > usual.round_s
    assert larger.swarm_tokens_per_s > usual.swarm_tokens_per_s
    accumulate = [of(peers=n).accumulate_s for n in (1, 2, 4, 8, 16)]
    assert accumulate == sorted(accumulate, reverse=True)
    reduce = [of(peers=n).all_reduce_s for n in (1, 2, 4, 8, 16)]
    assert reduce == sorted(reduce)
    assert reduce[0] == 0, "alone there is nothing to average"


@pytest.mark.parametrize("seed", range(10))
def test_a_pass_waits_for_the_step_as_far_as_it_must(seed: int) -> None:
    choice = chosen(seed)
    sizes = {name: n for piece in choice.cut.pieces for name, n in piece.parameters.items()}
    elements = sum(sizes.values())
    quick, slow = choice.seconds_under_step(1e15), choice.seconds_under_step(elements / 1e6)
    assert quick == pytest.approx(choice.timeline.seconds)
    assert slow <= 1e6 + choice.timeline.seconds
    last = choice.cut.pieces[-1].parameters.keys()
    if not any(last & piece.parameters.keys() for piece in choice.cut.pieces[:-1]):
        assert slow > 0.99e6, "the last sub-model's own parameters are updated last"
