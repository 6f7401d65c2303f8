"""Parts of every benchmark program: options, timings, the table and the JSON."""

import argparse
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
    """Parse an argument that counts something.

    Raises:
        ValueError: the number is below one.
    """
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def parser_of(doc: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with one option per keyword; `mbit_each=[1.0]` gives `--mbit-each 1.0 ...`.

    Args:
        doc: docstring of the program, shown by `--help`.
        defaults: value of each option. The type follows from it: integers count something (1 or
            more), a list takes several values, False makes a switch. A dictionary is passed to
            `add_argument` as it is.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        described = default if isinstance(default, dict) else _described(default)
        parser.add_argument(f"--{name.replace('_', '-')}", **described)
    return parser


def _described(default: Any) -> dict[str, Any]:
    if default is False:
        return {"action": "store_true"}
    has_many = isinstance(default, list | tuple)
    kind = type(default[0] if has_many else default)
    shown = " ".join(map(str, default)) if has_many else default
    described = {"default": default, "type": positive if kind is int else kind}
    return described | {"help": f"default: {shown}"} | ({"nargs": "+"} if has_many else {})


@dataclass(frozen=True)
class Timing:
    """Seconds of several runs; formatted as their median."""

    runs_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.runs_s)

    def __format__(self, spec: str) -> str:
        return format(self.median_s, spec)

    def to_json(self) -> dict[str, Any]:
        return {
            "median_s": self.median_s,
            "fastest_s": min(self.runs_s),
            "slowest_s": max(self.runs_s),
            "runs_s": list(self.runs_s),
        }


def ratio(ours: Timing, theirs: Timing) -> float:
    """Return the ratio of the medians; above one, ours is slower."""
    return ours.median_s / theirs.median_s


def machine() -> dict[str, Any]:
    """Return the machine and the versions that the figures belong to."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def cells(row: Mapping[str, Any], columns: Mapping[str, str]) -> list[str]:
    """Return a row as text; a figure that is absent or None gives an empty cell."""
    return [_cell(row.get(name), spec) for name, spec in columns.items()]


def _cell(value: Any, spec: str) -> str:
    return "" if value is None else value if isinstance(value, str) else format(value, spec)


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Return rows as aligned columns under their titles."""
    lines = [list(columns), *(cells(row, columns) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (map(str.rjust, line, widths) for line in lines)
    return "\n".join("   ".join(line).rstrip() for line in padded)


def say(line: str) -> None:
    """Write a line to stderr at once, while the program goes on."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def say_row(row: Mapping[str, Any], columns: Mapping[str, str]) -> None:
    """Write one row to stderr in one line, with the names of its figures."""
    named = zip(columns, cells(row, columns), strict=True)
    say(", ".join(f"{name} {cell}" for name, cell in named if cell))


def publish(
    benchmark: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], **facts: Any
) -> None:
    """Write the table to stderr, for people, and JSON to stdout, for programs.

    Args:
        benchmark: name of the program in the JSON.
        rows: all figures; those without a column are in the JSON only.
        columns: format specification of each figure in the table.
        facts: further fields of the JSON.
    """
    say(table(rows, columns))
    sys.stdout.write(to_json(benchmark, rows=rows, **facts))


def to_json(benchmark: str, **facts: Any) -> str:
    """Return the JSON of a program: its name, the machine, and its figures."""
    body = {"benchmark": benchmark, "machine": machine(), **facts}
    return json.dumps(body, indent=2, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    return value.to_json() if isinstance(value, Timing) else str(value)
