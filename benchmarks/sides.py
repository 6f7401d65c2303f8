"""Two sides of a comparison, measured in turn in one process: medians, spread, ratio."""

import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


def positive(text: str) -> int:
    """An argument that counts something. Raises: ValueError."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


@dataclass(frozen=True)
class Timing:
    """Seconds of several runs."""

    runs_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.runs_s)

    def to_json(self) -> dict[str, Any]:
        return {
            "median_s": self.median_s,
            "fastest_s": min(self.runs_s),
            "slowest_s": max(self.runs_s),
            "runs_s": list(self.runs_s),
        }


def ratio(ours: Timing, theirs: Timing) -> float:
    """Of the medians; above one: ours is slower."""
    return ours.median_s / theirs.median_s


def machine() -> dict[str, Any]:
    """What the numbers were taken on."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def publish(titles: Sequence[str], rows: Sequence[Sequence[str]], body: Mapping[str, Any]) -> None:
    """The table on stderr, for people; JSON on stdout, for programs."""
    table = [list(titles), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(titles))]
    for row in table:
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        sys.stderr.write("   ".join(cells) + "\n")
    sys.stdout.write(json.dumps(dict(body), indent=2) + "\n")
