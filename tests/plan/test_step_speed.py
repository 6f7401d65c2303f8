"""The step's speed is elements over the median of several steps, the first one left out."""

import pytest
import torch

from atom.graph.ir import ParameterLayout
from atom.optim.adamw import AdamW
from atom.optim.muon import Muon
from atom.optim.optimizer import Optimizer
from atom.plan import profiling
from atom.plan.profiling import REPEATS, step_elements_per_s
from atom.swap.host_store import StateForm
from atom.training.run_optimizer import ReplicaTerms

SHAPES = {f"m{number}": (1024, 1024) for number in range(3)}
LAYOUTS = [ParameterLayout.of(SHAPES, set(list(SHAPES)[:count])) for count in range(4)]
"""Layouts in which none, one, two or all of the parameters are matrices."""


def terms(optimizer: Optimizer, layout: ParameterLayout) -> ReplicaTerms:
    return ReplicaTerms(layout, torch.float32, optimizer)


@pytest.fixture(autouse=True)
def _small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "SAMPLE_ELEMENTS", 6400)
    monkeypatch.setattr(profiling, "SAMPLE_MATRIX", (64, 256))


def test_the_median_of_the_later_steps_counts() -> None:
    durations = [9.0, *(float(n) for n in range(1, REPEATS + 1))]
    ticks = iter([tick for seconds in durations for tick in (100.0, 100.0 + seconds)])
    speed = step_elements_per_s(terms(AdamW(), LAYOUTS[3]), lambda: next(ticks))
    assert speed == pytest.approx(6400 / 3.0)


def test_it_is_really_run_in_half_precision_too() -> None:
    for form in StateForm:
        half = ReplicaTerms(LAYOUTS[0], torch.bfloat16, AdamW(), form)
        assert step_elements_per_s(half) > 0


def test_products_of_matrices_count_by_their_number() -> None:
    """A second for each step: twice as many matrices take twice as long."""
    one = Muon().products(LAYOUTS[1].specs[0])
    assert one == 5 * (4 * 1024**3 + 2 * 1024**3)
    assert [sum(map(Muon().products, each.specs)) for each in LAYOUTS] == [0, one, 2 * one, 3 * one]
    seconds = list[float]()
    for layout in LAYOUTS:
        ticks = iter(range(4 * (REPEATS + 1)))
        muon = terms(Muon(), layout)
        per_s = step_elements_per_s(muon, lambda ticks=ticks: float(next(ticks)))
        seconds.append(layout.total_elements / per_s)
    each = seconds[1] - seconds[0]
    assert seconds[0] == pytest.approx(LAYOUTS[0].total_elements / 6400)
    assert each > 0
    assert seconds[3] - seconds[0] == pytest.approx(3 * each)
