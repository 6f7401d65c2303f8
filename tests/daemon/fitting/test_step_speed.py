"""The step's speed is elements over the median of several steps, the first one left out."""

import torch

from atom.daemon.fitting.profiling import REPEATS, step_elements_per_s
from atom.optim.adamw import AdamW
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
