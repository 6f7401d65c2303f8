"""Curves in one picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

LOSS = "validation loss (nats per byte)"


def draw(
    path: Path,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    along: str,
    up: str = LOSS,
    marker: str = "o",
) -> None:
    """Of losses, or what `up` says, by name, over what `along` says."""
    figure = Figure(figsize=(9, 5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, points in curves.items():
        places, losses = zip(*points or [(0.0, float("nan"))], strict=True)
        axes.plot(places, losses, marker=marker, markersize=3, label=name)
    axes.set_xlabel(along)
    axes.set_ylabel(up)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)
