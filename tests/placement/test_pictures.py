"""Bars and strips of a pass show what its timeline says."""

import random
from itertools import pairwise

import pytest
from small_chains import MACHINE, random_chain

from atom.placement.choice import Choice
from atom.placement.choosing import Question, choose
from atom.placement.gantt import LANES, MARKS, Bar, bars, strips
from atom.placement.memory import Limits


def choice_of(seed: int) -> Choice:
    return choose(Question(random_chain(random.Random(seed)), MACHINE, Limits(60_000, 4, 4)))


@pytest.mark.parametrize("seed", range(20))
def test_bars_fill_the_pass(seed: int) -> None:
    timeline = choice_of(seed).timeline
    drawn = bars(timeline)
    for lane in ("load", "compute", "gradients"):
        working = [bar for bar in drawn if bar.lane == lane and bar.kind != "idle"]
        assert sum(bar.end_s - bar.start_s for bar in working) >= timeline.busy_s(lane) - 1e-12
        ordered = sorted(working, key=lambda bar: bar.start_s)
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in pairwise(ordered))
        assert {bar.lane for bar in drawn} <= set(LANES)
    device = sorted((b for b in drawn if b.lane == "compute"), key=lambda bar: bar.start_s)
    assert device[0].start_s == 0
    assert device[-1].end_s == pytest.approx(timeline.seconds)
    assert all(a.end_s == pytest.approx(b.start_s, abs=1e-12) for a, b in pairwise(device))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("columns", [1, 20, 100])
def test_strips_are_as_wide_as_asked(seed: int, columns: int) -> None:
    timeline = choice_of(seed).timeline
    lines = strips(bars(timeline), columns)
    assert tuple(lines) == LANES
    assert all(len(line) == columns for line in lines.values())
    assert set("".join(lines.values())) <= set(MARKS.values())
    busy = sum(mark != " " for mark in lines["compute"]) / columns
    assert abs(busy - timeline.computing) <= 2 / columns


def test_a_lane_that_works_in_short_spells_is_not_blank() -> None:
    short = [Bar("compute", "forward", n, n + 0.0, n + 0.3) for n in range(100)]
    line = strips([*short, Bar("load", "load", 0, 0.0, 100.0)], 100)["compute"]
    assert 29 <= line.count(MARKS["forward"]) <= 31


def test_nothing_to_draw_is_drawn_as_nothing() -> None:
    assert set("".join(strips([], 10).values())) == {" "}
