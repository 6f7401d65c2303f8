"""Chart of losses by round: its scale, and the figures that templates/chart.html draws. Pure."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from atom.swarm.chain.commit_chain import Round

_MOST_POINTS = 200
_GRID_LINES = 4


def thinned(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers from 0 to `count - 1`, evenly spread, with both ends."""
    most = min(count, most)
    return [round(n * (count - 1) / (most - 1)) for n in range(most)]


def drawable(validations: Mapping[int, float], rounds: Sequence[Round]) -> dict[int, float]:
    """Return the validations of these rounds that are not far from all certified losses.

    A validation is the claim of a peer, which could otherwise make the curve a flat line.
    """
    low, high = min(each.loss for each in rounds), max(each.loss for each in rounds)
    numbers, span = range(rounds[0].number, rounds[-1].number + 1), max(high - low, abs(high))
    return {
        number: loss
        for number, loss in validations.items()
        if number in numbers and low - span <= loss <= high + span
    }


def readable_scale(low: float, high: float, parts: int) -> tuple[float, float, int]:
    """Return (start, step, number of steps) of an axis with at most `parts` steps.

    The step has one or two digits, and the start is a multiple of it.
    """
    unit = 10.0 ** math.floor(math.log10(max((high - low) / parts, abs(low) * 1e-6, 1e-6)))
    for step in (unit * times for times in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 20)):
        start = math.floor(low / step) * step
        if start + parts * step >= high:
            break
    steps = max(math.ceil((high - start) / step), 1)
    return start, step, min(steps, parts)  # rounding may add a step


def label(value: float, step: float) -> str:
    """Return a number of an axis with the digits that its step needs."""
    return f"{value:,.{max(1 - math.floor(math.log10(step)), 0)}f}"


def loss_chart(
    rounds: Sequence[Round], validations: Mapping[int, float], samples: Mapping[int, str]
) -> dict[str, Any]:
    """Return what templates/chart.html draws. The picture is 1000 units wide, and 100 high.

    Args:
        rounds: All rounds so far, two at least.
        validations: Validation loss by round, as far as it was seen.
        samples: Text that the run wrote, by round, as far as it was seen.
    """
    trained = list(accumulate(each.sequences for each in rounds))
    places = thinned(len(rounds), _MOST_POINTS)
    drawn = [rounds[place] for place in places]
    first, last = rounds[0].number, rounds[-1].number
    held_back = drawable(validations, rounds)
    values = [each.loss for each in drawn] + list(held_back.values())
    low, step, steps = readable_scale(min(values), max(values), _GRID_LINES)
    high = low + steps * step

    def at(number: int, value: float) -> str:
        x = (number - first) / (last - first)
        return f"{1000 * x:.1f},{100 * (high - value) / (high - low):.2f}"

    columns, before = list[str](), first - 1
    for place, each in zip(places, drawn, strict=True):
        since = range(before + 1, each.number + 1)
        said = [f"round {each.number:,}", f"loss {each.loss:.4f}"]
        said += [f"validation {held_back[n]:.4f}" for n in since if n in held_back]
        said += [f"{trained[place]:,} sequences"]
        said += [f"wrote: {samples[n]}" for n in since if n in samples]
        columns.append(", ".join(said))
        before = each.number
    return {
        "line": [at(each.number, each.loss) for each in drawn],
        "held_back": [at(number, value) for number, value in held_back.items()],
        "texts": [at(number, low) for number in samples if first <= number <= last],
        "columns": columns,
        "grid": [f"{100 * n / steps:.2f}" for n in range(steps + 1)],
        "ticks": [label(high - n * step, step) for n in range(steps + 1)],
        "first": f"round {first:,}",
        "last": f"round {last:,}, {trained[-1]:,} sequences",
    }
