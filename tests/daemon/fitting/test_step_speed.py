"""The step's speed is elements over the median of several steps, the first one left out."""

import torch

from atom.daemon.fitting.profiling import REPEATS, step_elements_per_s, with_products
from atom.graph.ir import ParameterLayout
from atom.optim.adamw import AdamW
from atom.optim.muon import Muon
from atom.swap.state_form import StateForm


def test_the_median_of_the_later_steps_counts() -> None:
    durations = [9.0, *(float(n) for n in range(1, REPEATS + 1))]
    ticks = iter([tick for seconds in durations for tick in (100.0, 100.0 + seconds)])
    exact = torch.float32, StateForm.EXACT
    speed = step_elements_per_s(AdamW(), *exact, 6400, lambda: next(ticks))
    assert speed == 6400 / 3.0


def test_it_is_really_run_in_half_precision_too() -> None:
    for form in StateForm:
        assert step_elements_per_s(AdamW(), torch.bfloat16, form, 6400) > 0


def test_products_of_matrices_count_by_their_number() -> None:
    """Twice as many matrices take twice as long; an optimizer without products is as fast."""
    shapes = {f"m{number}": (1024, 1024) for number in range(3)}
    layouts = [ParameterLayout.of(shapes, set(list(shapes)[:count])) for count in range(4)]
    numbers = torch.float32, StateForm.EXACT
    one = Muon().products(layouts[1].specs[0])
    assert one == 5 * (4 * 1024**3 + 2 * 1024**3)
    assert [sum(map(Muon().products, each.specs)) for each in layouts] == [0, one, 2 * one, 3 * one]
    assert with_products(1e9, AdamW(), layouts[3], *numbers) == 1e9
    assert with_products(1e9, Muon(), layouts[0], *numbers) == 1e9
    assert with_products(1e12, Muon(), layouts[3], *numbers) < 1e12 / 100
