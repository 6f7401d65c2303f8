"""Predicted rounds: faster hardware and more memory never make them longer."""

import math
import random
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from small_chains import MACHINE, layer_ends, random_chain

from atom.graph.chain import Chain, Machine, Operation
from atom.plan.choice import Choice, HostStep
from atom.plan.choosing import Question, choose
from atom.plan.memory import Cut, Limits
from atom.plan.prediction import RoundPrediction, Work, exchange_bytes, gain, predict
from atom.swap.schedule import Arrangement

WORK = Work(
    parameters=10**6,
    round_sequences=64,
    micro_batch_sequences=4,
    sequence_tokens=16,
    peers=4,
    inner_sequences=None,
    step=HostStep(1e8, 30.0),
    network_bytes_per_s=1e6,
    gradient_element_bytes=4,
    steps_beside=True,
)
SECONDS = replace(WORK, step=HostStep(1e6, 30.0), steps_beside=False)
"""A step takes a second, an exchange of 4 peers 2 (4 - 1) / 4 x 4 = 6 seconds."""
LOCAL = replace(SECONDS, inner_sequences=4)


@cache
def chosen(seed: int) -> Choice:
    pick = random.Random(seed)
    chain = random_chain(pick)
    return choose(Question(chain, MACHINE, Limits(200_000, 4, 4), layer_ends(chain, pick)))


def a_second_each() -> Choice:
    """A pass of two micro-batches takes two seconds."""
    only = Operation("only", {}, 0.25, 0.75, 0, 0)
    cut = Cut.of(Chain((only,), ()), MACHINE, Limits(0, 4, micro_batches=2), (1,))
    return Choice(cut, Arrangement())


@pytest.mark.parametrize(
    ("peers", "dialable", "averages"),
    [(1, None, 0), (2, 1, 1), (2, None, 1), (8, 1, 7), (8, 2, 4), (8, None, 1.75), (8, 9, 1.75)],
)
def test_the_busiest_line_carries_more_if_few_can_be_dialled(
    peers: int, dialable: int | None, averages: float
) -> None:
    assert exchange_bytes(10, 0.5, peers, dialable) == pytest.approx(averages * 5)
    lonely = predict(a_second_each(), replace(WORK, peers=peers, dialable=dialable))
    assert lonely.all_reduce_s == pytest.approx(averages * 4e6 / 1e6)


def test_a_round_by_hand() -> None:
    choice = chosen(0)
    found = predict(choice, WORK)
    passes, full = found.passes, 4 / (found.passes * choice.micro_batches)
    assert found.accumulate_s == pytest.approx(choice.passes_s(passes) * full)
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


@pytest.mark.parametrize("seed", range(6))
def test_predictions_are_monotone(seed: int) -> None:
    choice = chosen(seed)

    def of(**changes: Any) -> RoundPrediction:
        return predict(choice, replace(WORK, **changes))

    usual, host = of(), of(steps_beside=False)
    assert of(network_bytes_per_s=2e6).round_s < usual.round_s
    twice = of(steps_beside=False, step=HostStep(2e8, 30.0))
    assert twice.round_s < host.round_s
    assert of(step=HostStep(2e8, 30.0)).round_s <= usual.round_s <= host.round_s
    assert of(gradient_element_bytes=2).round_s < usual.round_s
    larger = of(round_sequences=128)
    assert larger.round_s > usual.round_s
    assert larger.swarm_tokens_per_s > usual.swarm_tokens_per_s
    accumulate = [of(peers=n).accumulate_s for n in (1, 2, 4, 8, 16)]
    assert accumulate == sorted(accumulate, reverse=True)
    reduce = [of(peers=n).all_reduce_s for n in (1, 2, 4, 8, 16)]
    assert reduce == sorted(reduce)
    assert reduce[0] == 0, "alone there is nothing to average"


@pytest.mark.parametrize("seed", range(6))
def test_a_pass_waits_for_the_step_as_far_as_it_must(seed: int) -> None:
    choice = chosen(seed)
    sizes = {name: n for piece in choice.cut.pieces for name, n in piece.parameters.items()}
    elements = sum(sizes.values())
    quick, slow = (choice.passes_s(1, HostStep(rate, 30.0)) for rate in (1e15, elements / 1e6))
    assert quick == pytest.approx(choice.timeline.seconds)
    assert slow <= 1e6 + choice.timeline.seconds
    last = choice.cut.pieces[-1].parameters.keys()
    if not any(last & piece.parameters.keys() for piece in choice.cut.pieces[:-1]):
        assert slow > 0.99e6, "the last sub-model's own parameters are updated last"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("passes", [1, 5])
def test_a_norm_is_summed_while_gradients_land(seed: int, passes: int) -> None:
    """But for what lands last."""
    choice = chosen(seed)
    machine = replace(choice.cut.machine, sum_bytes_per_s=choice.cut.machine.gradient_bytes_per_s)
    choice = replace(choice, cut=replace(choice.cut, machine=machine))
    first, *_ = choice.cut.first_uses
    least_s = choice.norm_s(sum(first.values()))
    all_s = choice.norm_s(sum(n for new in choice.cut.first_uses for n in new.values()))
    more_s = choice.passes_s(passes, norm=True) - choice.passes_s(passes)
    assert least_s * 0.999 <= more_s <= all_s * 1.001


@pytest.mark.parametrize("seed", range(6))
def test_passes_of_a_round_follow_each_other_without_waiting_for_what_lands(seed: int) -> None:
    """Each costs no more than a pass that finds nothing, and no less than its computing."""
    choice = chosen(seed)
    together = [choice.passes_s(n) for n in range(1, 7)]
    more = [after - before for before, after in pairwise(together)]
    assert together[0] == pytest.approx(choice.timeline.seconds)
    assert more[2:] == pytest.approx([more[1]] * 3)
    computing = choice.timeline.busy_s("compute")
    assert all(computing * 0.999 <= each <= together[0] * 1.001 for each in more)


# --- beside an H200 -----------------------------------------------------------------------------

H200 = Machine(50e9, 50e9, 100e9, 140e9)
"""Rates measured on an H200, except for additions, which move 12 bytes per parameter."""
BLOCK, TABLE = {"2.7b": (78.7e6, 134e6), "6.7b": (201.4e6, 214e6)}, "table"


def on_an_h200(size: str, blocks: int, micro_batches: int, passes_s: float) -> Choice:
    """A GPT-3 of so many blocks that takes so long for all passes of a step, if none waits."""
    block, table = (int(n) for n in BLOCK[size])
    part = passes_s / (4 * blocks + 3)
    sizes = [{TABLE: table}, *({f"block {n}": block} for n in range(blocks)), {TABLE: table}]
    shares = [0.0, *[1.0] * blocks, 1.0]
    operations = tuple(
        Operation(str(n), parameters, share * part, 2 * share * part, 0, 0)
        for n, (parameters, share) in enumerate(zip(sizes, shares, strict=True))
    )
    cut = Cut.of(
        Chain(operations, ()), H200, Limits(0, 2, micro_batches), range(1, len(operations) + 1)
    )
    return Choice(cut, Arrangement())


@pytest.mark.parametrize(
    ("passes", "passes_s", "step_s"), [(1, 1.617, 2.047), (2, 6.267, 6.704)], ids=["32k", "131k"]
)
def test_steps_with_the_norm_as_gradients_land(passes: int, passes_s: float, step_s: float) -> None:
    """2.7B, 27 November 2026: passes as planned there, steps as measured."""
    choice = on_an_h200("2.7b", 32, 1, passes_s / passes)
    predicted_s = choice.passes_s(passes, HostStep(3.6e9, 28), norm=True)
    assert predicted_s == pytest.approx(step_s, rel=0.06)


# --- several devices ----------------------------------------------------------------------------


def link_bound(devices: int, memory_bytes_per_s: float) -> Choice:
    """Passes that load and bring out for most of the time, over links of 1 MB/s each."""
    operations = tuple(Operation(str(n), {str(n): 100_000}, 0.01, 0.02, 0, 0) for n in range(8))
    machine = Machine(1e6, 1e6, 4e6, memory_bytes_per_s)
    limits = Limits(0, 4, micro_batches=1, devices=devices)
    return Choice(Cut.of(Chain(operations, ()), machine, limits, range(1, 9)), Arrangement())


def test_each_device_brings_as_much_until_the_host_s_memory_is_full() -> None:
    work = replace(WORK, peers=1, round_sequences=4 * 640, step=HostStep(1e9, 30.0))
    free, shared = (
        [gain(link_bound(n, rate), work).alone for n in (1, 2, 4, 8)] for rate in (math.inf, 10e6)
    )
    assert [rate / free[0] for rate in free] == pytest.approx([1, 2, 4, 8], rel=0.01)
    assert shared[0] == pytest.approx(free[0], rel=0.01), "one device leaves some of it"
    one = link_bound(1, math.inf).timeline
    moved_bytes = 1e6 * (one.busy_s("load") + one.busy_s("gradients")) + 4e6 * one.busy_s("sums")
    most = 4 * WORK.sequence_tokens * 10e6 / moved_bytes
    times = [rate / shared[0] for rate in shared]
    assert times[0] < times[1] < times[2] < times[3]
    assert 0.75 * most < shared[2] < shared[3] < 1.05 * most, "and then no more"


def test_devices_that_are_the_host_s_cores_share_them() -> None:
    beside, own = (replace(WORK, peers=1, steps_beside=beside) for beside in (True, False))
    one, four = link_bound(1, math.inf), link_bound(4, math.inf)
    assert predict(four, beside).passes == 4
    assert predict(four, own) == predict(one, own)
