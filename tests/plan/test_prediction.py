"""Rounds reckoned from a pass: more of anything good never makes them longer."""

import random
from dataclasses import replace

import pytest
from small_chains import MACHINE, layer_ends, random_chain

from atom.plan.advice import Situation, advise
from atom.plan.choice import Choice, Limits, choose
from atom.plan.prediction import RoundPrediction, Surroundings, Work, predict

WORK = Work(
    parameters=10**6, round_sequences=64, micro_batch_sequences=4, sequence_tokens=16, peers=4
)
AROUND = Surroundings(
    optimizer_elements_per_s=1e8, network_bytes_per_s=1e6, gradient_element_bytes=4
)


def situation(seed: int) -> tuple[Situation, Choice]:
    pick = random.Random(seed)
    chain = random_chain(pick)
    limits = Limits(200_000, 4, 4)
    ends = layer_ends(chain, pick)
    now = Situation(chain, MACHINE, limits, WORK, AROUND, ends)
    return now, choose(chain, MACHINE, limits, ends)


def test_a_round_by_hand() -> None:
    _, choice = situation(0)
    found = predict(choice, WORK, AROUND)
    assert found.accumulate_s == pytest.approx(4 * choice.seconds_per_micro_batch)
    assert found.all_reduce_s == pytest.approx(2 * 3 / 4 * 4e6 / 1e6)
    assert found.optimizer_s == pytest.approx(0.01)
    assert found.round_s == found.accumulate_s + found.all_reduce_s + found.optimizer_wait_s
    alone = predict(choice, WORK, replace(AROUND, steps_beside=False))
    assert alone.optimizer_wait_s == alone.optimizer_s
    assert found.swarm_tokens_per_s == pytest.approx(64 * 16 / found.round_s)
    assert found.tokens_per_s == pytest.approx(16 * 16 / found.accumulate_s)
    assert 0 < found.utilisation <= 1
    assert found.passes * choice.micro_batches >= 4 > (found.passes - 1) * choice.micro_batches


def test_alone_there_is_nothing_to_average() -> None:
    _, choice = situation(1)
    assert predict(choice, replace(WORK, peers=1), AROUND).all_reduce_s == 0


@pytest.mark.parametrize("seed", range(10))
def test_predictions_are_monotone(seed: int) -> None:
    _, choice = situation(seed)

    def of(work: Work = WORK, around: Surroundings = AROUND) -> RoundPrediction:
        return predict(choice, work, around)

    faster = of(around=replace(AROUND, network_bytes_per_s=2e6))
    assert faster.round_s < of().round_s
    host = replace(AROUND, steps_beside=False)
    twice = replace(host, optimizer_elements_per_s=2e8)
    assert of(around=twice).round_s < of(around=host).round_s
    assert of(around=replace(twice, steps_beside=True)).round_s <= of().round_s
    assert of().round_s <= of(around=host).round_s
    assert of(around=replace(AROUND, gradient_element_bytes=2)).round_s < of().round_s
    larger = of(replace(WORK, round_sequences=128))
    assert larger.round_s > of().round_s
    assert larger.swarm_tokens_per_s > of().swarm_tokens_per_s
    accumulate = [of(replace(WORK, peers=n)).accumulate_s for n in (1, 2, 4, 8, 16)]
    assert accumulate == sorted(accumulate, reverse=True)
    reduce = [of(replace(WORK, peers=n)).all_reduce_s for n in (1, 2, 4, 8, 16)]
    assert reduce == sorted(reduce)


@pytest.mark.parametrize("seed", range(10))
def test_advice_is_sorted_and_names_what_gains(seed: int) -> None:
    now, choice = situation(seed)
    found = advise(now, choice)
    gains = [advice.gain for advice in found]
    assert gains == sorted(gains, reverse=True)
    assert all(0.02 <= gain <= 1.0 + 1e-9 for gain in gains)
    assert "twice the network bandwidth" in {advice.change for advice in found}
    alone = replace(now, work=replace(WORK, peers=1))
    assert not any("network" in advice.change for advice in advise(alone, choice))


@pytest.mark.parametrize("seed", range(10))
def test_a_pass_waits_for_the_step_as_far_as_it_must(seed: int) -> None:
    _, choice = situation(seed)
    sizes = {name: n for piece in choice.pieces for name, n in piece.parameters.items()}
    elements = sum(sizes.values())
    quick, slow = choice.seconds_under_step(1e15), choice.seconds_under_step(elements / 1e6)
    assert quick == pytest.approx(choice.timeline.seconds)
    assert slow <= 1e6 + choice.timeline.seconds
    last = choice.pieces[-1].parameters.keys()
    if not any(last & piece.parameters.keys() for piece in choice.pieces[:-1]):
        assert slow > 0.99e6, "the last sub-model's own parameters are updated last"
