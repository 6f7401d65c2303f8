"""Loss, throughput, membership and reduce time of a run, one below the other, over its rounds."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from atom.cli.look.run_rounds import PlottedRound
from atom.swarm.identity import short_id
from atom.swarm.records.view import loss_unit, trained_on

MAX_NAMED = 12
"""Peers that get a line of their own; of more, only the number is drawn."""
_TRAINING, _VALIDATION, _SPEED, _REDUCE = "#1f6fb4", "#d9480f", "#2b8a3e", "#7e3bb8"
_BRANCH = "#c92a2a"
_WHOLE = StrMethodFormatter("{x:,.0f}")
_PANEL_INCHES, _WIDTH_INCHES = 1.9, 9.0

DataAmount = tuple[int, int, int] | None
_Draw = Callable[[Axes, Sequence[PlottedRound]], None]


def draw_run(path: Path, rounds: Sequence[PlottedRound], title: str, amount: DataAmount) -> None:
    """Writes the picture; its form follows the name (.png, .svg, .pdf). `amount`: as the manifest
    says it; None if not known. Raises: OSError."""
    throughput = partial(_throughput, trained_on(amount))
    panels = [
        (partial(_loss, loss_unit(amount)), 1.5),
        (throughput, 1.0) if any(each.tokens_per_s for each in rounds) else None,
        (_membership, 1.0),
        (_reduce_time, 1.0) if any(each.reduce_s for each in rounds) else None,
    ]
    drawn: list[tuple[_Draw, float]] = [panel for panel in panels if panel is not None]
    heights = [height for _, height in drawn]
    figure = Figure((_WIDTH_INCHES, _PANEL_INCHES * sum(heights)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    column = figure.subplots(len(drawn), 1, sharex=True, squeeze=False, height_ratios=heights)
    for axes, (draw, _) in zip(column[:, 0], drawn, strict=True):
        draw(axes, rounds)
        _mark_branches(axes, rounds)
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    column[0, 0].set_title(title, loc="left", fontsize=11, parse_math=False)
    last: Axes = column[-1, 0]
    last.set_xlabel("round (one optimizer step of the whole swarm)")
    last.set_xlim(rounds[0].number - 0.6, rounds[-1].number + 0.6)
    last.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    last.xaxis.set_major_formatter(_WHOLE)
    figure.align_ylabels()
    figure.savefig(path)


def _loss(unit: str, axes: Axes, rounds: Sequence[PlottedRound]) -> None:
    finite = [each for each in rounds if math.isfinite(each.loss)]
    _line(axes, [(e.number, e.loss) for e in finite], _TRAINING, "training")
    checked = [(e.number, e.validation_loss) for e in rounds if e.validation_loss is not None]
    if checked:
        axes.plot(*zip(*checked, strict=True), "o", ms=4, color=_VALIDATION, label="validation")
    if any(each.branch for each in rounds):
        axes.plot([], [], "--", lw=1, color=_BRANCH, label="branch without a quorum")
    if len(axes.lines) > 1:
        axes.legend(frameon=False, loc="upper right")
    axes.set_ylabel(f"loss\n({unit})" if unit else "loss")


def _throughput(unit: str, axes: Axes, rounds: Sequence[PlottedRound]) -> None:
    _line(axes, [(e.number, e.tokens_per_s) for e in rounds if e.tokens_per_s], _SPEED)
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter(_WHOLE)
    axes.set_ylabel(f"{unit}/s\nof the swarm")


def _reduce_time(axes: Axes, rounds: Sequence[PlottedRound]) -> None:
    _line(axes, [(e.number, e.reduce_s) for e in rounds if e.reduce_s], _REDUCE)
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    axes.set_ylabel("all-reduce (s)")


def _membership(axes: Axes, rounds: Sequence[PlottedRound]) -> None:
    parts = Counter(peer for each in rounds for peer in each.peer_ids)
    if 0 < len(parts) <= MAX_NAMED:
        _rows(axes, rounds, sorted(parts, key=lambda peer: (parts[peer], peer)))
        return
    numbers, members = [e.number for e in rounds], [e.members for e in rounds]
    axes.step(numbers, members, where="mid", color=_SPEED, marker=_marker(rounds))
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylabel("peers with\na part")


def _rows(axes: Axes, rounds: Sequence[PlottedRound], peers: Sequence[str]) -> None:
    """A bar per peer over the rounds that it had a part in; who has most is on top."""
    for row, peer in enumerate(peers):
        spans = _spans([each.number for each in rounds if peer in each.peer_ids])
        axes.broken_barh(spans, (row - 0.3, 0.6), color=_SPEED)
    axes.set_yticks(range(len(peers)), [short_id(peer) for peer in peers], fontsize=8)
    axes.set_ylim(-0.6, len(peers) - 0.4)
    axes.set_ylabel("peers with\na part")


def _spans(numbers: Sequence[int]) -> list[tuple[float, float]]:
    """Runs of consecutive rounds, as (start, width)."""
    spans: list[tuple[float, float]] = []
    for number in numbers:
        if spans and number - 0.5 == sum(spans[-1]):
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((number - 0.5, 1))
    return spans


def _mark_branches(axes: Axes, rounds: Sequence[PlottedRound]) -> None:
    for each in rounds:
        if each.branch:
            axes.axvline(each.number, color=_BRANCH, linestyle="--", linewidth=1)


def _line(
    axes: Axes, points: Sequence[tuple[int, float | None]], color: str, label: str | None = None
) -> None:
    numbers, values = [n for n, _ in points], [v for _, v in points if v is not None]
    axes.plot(numbers, values, color=color, linewidth=1.4, marker=_marker(points), label=label)


def _marker(points: Sequence[object]) -> str | None:
    """One point alone has no line."""
    return "o" if len(points) == 1 else None
