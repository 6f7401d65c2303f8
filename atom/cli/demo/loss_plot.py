"""loss.png: the loss of every round, and what happened to the swarm meanwhile."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atom.cli.demo.record import Event, rounds_of

_TRAINING, _VALIDATION, _QUIET = "#1f6fb4", "#d9480f", "#868e96"
_GOOD, _BAD = "#2b8a3e", "#c92a2a"


@dataclass(frozen=True)
class Mark:
    """Something that happened after a round."""

    round: int
    text: str
    is_loss: bool
    """Whether a peer went (else one came)."""


def draw_loss(path: Path, events: Sequence[Event], marks: Sequence[Mark], title: str) -> None:
    """Writes the picture. `events` are those of one peer that saw every round."""
    rounds = rounds_of(events)
    figure = Figure(figsize=(9, 5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if rounds:
        _draw_curves(axes, rounds)
        for mark in marks:
            _draw_mark(axes, mark)
    axes.set_xlabel("round (one optimizer step of the whole swarm)")
    axes.set_ylabel("loss (nats per byte)")
    axes.set_title(title, loc="left", fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _draw_curves(axes: Axes, rounds: Sequence[Event]) -> None:
    numbers = [int(event["round"]) for event in rounds]
    losses = [float(event["loss"]) for event in rounds]
    axes.plot(numbers, losses, color=_TRAINING, linewidth=1.6, label="training")
    checked = [event for event in rounds if event.get("validation_loss") is not None]
    if checked:
        axes.plot(
            [int(event["round"]) for event in checked],
            [float(event["validation_loss"]) for event in checked],
            color=_VALIDATION, marker="o", linestyle="none", markersize=6, label="validation",
        )  # fmt: skip
    half = losses[0] / 2
    axes.axhline(half, color=_QUIET, linestyle=":", linewidth=1.2, label="half of the first loss")
    axes.set_ylim(0, max(filter(math.isfinite, losses), default=1.0) * 1.08)
    axes.set_xlim(0, numbers[-1] * 1.01)
    axes.legend(frameon=False, loc="upper right")


def _draw_mark(axes: Axes, mark: Mark) -> None:
    color = _BAD if mark.is_loss else _GOOD
    axes.axvline(mark.round, color=color, linestyle="--", linewidth=1.2)
    axes.annotate(
        mark.text,
        xy=(mark.round, 0.03),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        color=color,
        fontsize=9,
        rotation=90,
        va="bottom",
    )
