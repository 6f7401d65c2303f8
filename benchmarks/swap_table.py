"""What the measurements say, as tables for people and as JSON for programs."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from swap_cases import GB, Target
from swap_measure import Measured, SideResult

SIDES = ("case", "side", "s per step", "tokens/s", "GPU GB", "host GB", "ready s")
TARGETS = ("case", "figure", "measured", "target", "verdict")
NOTHING = "-"
MET = "met"


def side_rows(measured: Measured) -> list[list[str]]:
    rows = []
    for label, result in measured.sides.items():
        rows.append([measured.case.name, label, *_cells(result)])
    for label, reason in measured.missing.items():
        rows.append([measured.case.name, label, reason])
    if measured.out_of_time:
        rows.append([measured.case.name, "", "out of time"])
    return rows


def _cells(result: SideResult) -> list[str]:
    memory, ready = result.memory, f"{result.ready_s:.1f}"
    gpu = memory.get("gpu_reserved_bytes")
    held = [NOTHING if gpu is None else f"{gpu / GB:.1f}", f"{memory['host_bytes'] / GB:.1f}"]
    if not result.step.runs_s:
        return [NOTHING, NOTHING, *held, ready]
    seconds = result.step.median_s
    return [f"{seconds:.3f}", f"{result.tokens / seconds:,.0f}", *held, ready]


def target_rows(measured: Measured, judged: bool) -> list[list[str]]:
    """`judged`: at full size; a toy's figures are shown, and no verdict."""
    return [
        [
            measured.case.name,
            target.what,
            _number(measured.figures.get(target.figure)),
            target.text,
            verdict(measured, target, judged),
        ]
        for target in measured.case.targets
    ]


def verdict(measured: Measured, target: Target, judged: bool) -> str:
    figure = measured.figures.get(target.figure)
    if figure is None:
        return "not measured"
    if not judged:
        return "toy size"
    return MET if target.met(figure) else "missed"


def _number(figure: float | None) -> str:
    return NOTHING if figure is None else f"{figure:.4g}"


def text(rows: Sequence[Sequence[str]], titles: Sequence[str]) -> str:
    """Columns, aligned; a row with fewer cells ends where it ends."""
    table = [list(titles), *map(list, rows)]
    full = [row for row in table if len(row) == len(titles)]
    widths = [max(len(row[column]) for row in full) for column in range(len(titles))]
    lines = []
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("   ".join(cells).rstrip() + "\n")
    return "".join(lines)


def markdown(rows: Sequence[Sequence[str]], titles: Sequence[str]) -> str:
    """A table as docs/performance.md has it."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def to_json(measured: Measured, judged: bool) -> dict[str, Any]:
    case = measured.case
    return {
        "name": case.name,
        "kind": case.kind.value,
        "size": case.size,
        "tokens_per_step": case.tokens,
        "micro_batches": case.micro_batches,
        "sequences": case.sequences,
        "gpu_cap_bytes": case.gpu_bytes,
        "layout": case.layout,
        "sides": {label: _side(result) for label, result in measured.sides.items()},
        "missing": measured.missing,
        "out_of_time": measured.out_of_time,
        "figures": measured.figures,
        "targets": [
            {
                **asdict(target),
                "measured": measured.figures.get(target.figure),
                "verdict": verdict(measured, target, judged),
            }
            for target in case.targets
        ],
    }


def _side(result: SideResult) -> dict[str, Any]:
    timing = result.step
    return {
        "ready_s": result.ready_s,
        "step": timing.to_json() if timing.runs_s else None,
        "losses": result.answers[0].losses,
        "memory": result.memory,
        "facts": result.facts,
    }
