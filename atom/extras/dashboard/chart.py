"""Chart of losses by round: lines in SVG, labels and values in HTML. Pure.

The picture stretches to its panel, so nothing in it may be text or round: labels are HTML beside
it, and dots are lines of no length with round ends. Above the picture lies one invisible column
per point of the curve; the style sheet shows the values of the column under the pointer. Colours
come from the style sheet, too.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate

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
) -> str:
    """Return the chart as HTML.

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

    line = " ".join(at(each.number, each.loss) for each in drawn)
    dots = "".join(f"M{at(number, value)}h0" for number, value in held_back.items())
    marks = "".join(f"M{at(number, low)}h0" for number in samples if first <= number <= last)
    grid = "".join(f"M0,{100 * n / steps:.2f}h1000" for n in range(steps + 1))
    ticks = [label(high - n * step, step) for n in range(steps + 1)]
    columns, before = list[str](), first - 1
    for place, each in zip(places, drawn, strict=True):
        since = range(before + 1, each.number + 1)
        said = [f"round {each.number:,}", f"loss {each.loss:.4f}"]
        said += [f"validation {held_back[n]:.4f}" for n in since if n in held_back]
        said += [f"{trained[place]:,} samples"]
        said += [f"wrote: {samples[n]}" for n in since if n in samples]
        columns.append(f"<li><p>{escape(', '.join(said))}</p></li>")
        before = each.number
    return (
        f'<div class="chart"><div class="ys">{"".join(f"<span>{t}</span>" for t in ticks)}'
        '</div><div class="plot"><svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img"'
        f' aria-label="loss by round"><path class="grid" d="{grid}"/>'
        f'<polygon class="area" points="{line} 1000,100 0,100"/>'
        f'<polyline class="line" points="{line}"/><path class="held-back" d="{dots}"/>'
        f'<path class="texts" d="{marks}"/></svg><ol>{"".join(columns)}</ol></div>'
        f'<div class="xs"><span>round {first:,}</span>'
        f"<span>round {last:,}, {trained[-1]:,} samples</span></div></div>"
        '<p class="quiet keys"><span class="line">training loss</span>'
        '<span class="held-back">validation</span><span class="texts">sample text</span></p>'
    )
