"""A pass as a Gantt chart: what is loaded, computed and sent out, when. SVG."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from atom.plan.gantt import LANES, Bar

_LANE_TITLES = ("loads", "computes", "gradients out")
_KINDS = {
    "load": ("load", "#3f8f66"),
    "forward": ("forward", "#3b6fb6"),
    "backward": ("backward", "#c96f1a"),
    "gradients": ("gradients out", "#8362a8"),
    "values": ("values to the host and back", "#4d8f94"),
    "idle": ("device waits", "#c9c9c9"),
}
_LABELLED_SHARE = 0.011
"""Of the width: bars narrower than this per digit carry no number."""
_SVG: Any = {"svg.fonttype": "none", "svg.hashsalt": "atom", "font.family": "sans-serif"}


def schedule_svg(bars: Sequence[Bar], title: str) -> bytes:
    """The chart: the same bytes for the same bars. Numbers in bars are sub-models."""
    seconds = max(bar.end_s for bar in bars)
    with rc_context(_SVG):
        figure = Figure(figsize=(12, 3.4), layout="constrained")
        axes = figure.add_subplot()
        scale, unit = (1e3, "milliseconds") if seconds < 1 else (1.0, "seconds")
        for bar in bars:
            _draw(axes, bar, seconds, scale)
        _label(axes, title, seconds * scale, unit)
        moved = any(bar.kind == "values" for bar in bars)
        shown = [_KINDS[kind] for kind in _KINDS if kind != "values" or moved]
        handles = [Patch(color=colour, label=name) for name, colour in shown]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
        file = BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _label(axes: Any, title: str, width: float, unit: str) -> None:
    axes.set_yticks(range(len(LANES)), _LANE_TITLES)
    axes.set_ylim(len(LANES) - 0.5, -0.5)
    axes.set_xlim(0, width)
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _draw(axes: Any, bar: Bar, seconds: float, scale: float) -> None:
    row, width = LANES.index(bar.lane), bar.end_s - bar.start_s
    axes.barh(
        row,
        width * scale,
        left=bar.start_s * scale,
        height=0.2 if bar.kind == "idle" else 0.62,
        color=_KINDS[bar.kind][1],
        edgecolor="white",
        linewidth=0.4,
    )
    label = "" if bar.sub_model is None else str(bar.sub_model)
    if label and width > _LABELLED_SHARE * seconds * len(label):
        centre = (bar.start_s + width / 2) * scale
        axes.text(centre, row, label, ha="center", va="center", color="white", fontsize=7)
