"""Measurements as rows of tables and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.shared.program import cells
from benchmarks.swap.cases import GB, Target
from benchmarks.swap.measure import Measured, SideResult

SIDE_COLUMNS = {
    "case": "", "side": "", "s per step": ".3f", "tokens/s": ",.0f", "GPU GB": ".1f",
    "host GB": ".1f", "ready s": ".1f",
}  # fmt: skip
TARGET_COLUMNS = {"case": "", "figure": "", "measured": ".4g", "target": "", "verdict": ""}
MET = "met"


def side_rows(measured: Measured) -> list[dict[str, Any]]:
    """Return a row per side; a side without figures has the reason in the place of its speed."""
    case = {"case": measured.case.name}
    rows = [case | {"side": label} | _figures(side) for label, side in measured.sides.items()]
    rows += [case | {"side": label, "s per step": why} for label, why in measured.missing.items()]
    return rows + ([case | {"s per step": "out of time"}] if measured.out_of_time else [])


def _figures(result: SideResult) -> dict[str, Any]:
    memory, found = result.memory, dict[str, Any]()
    if result.step.runs_s:
        seconds = result.step.median_s
        found = {"s per step": seconds, "tokens/s": result.tokens / seconds}
    gpu = memory.get("gpu_reserved_bytes")
    return found | {
        "GPU GB": None if gpu is None else gpu / GB,
        "host GB": memory["host_bytes"] / GB,
        "ready s": result.ready_s,
    }


def target_rows(measured: Measured, judged: bool) -> list[dict[str, Any]]:
    """Return a row per target; without `judged` (toy size) the figures have no verdict."""
    return [
        {
            "case": measured.case.name,
            "figure": target.what,
            "measured": measured.figures.get(target.figure),
            "target": target.text,
            "verdict": verdict(measured, target, judged),
        }
        for target in measured.case.targets
    ]


def verdict(measured: Measured, target: Target, judged: bool) -> str:
    figure = measured.figures.get(target.figure)
    if figure is None:
        return "not measured"
    if not judged:
        return "toy size"
    return MET if target.met(figure) else "missed"


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of targets as in docs/performance.md."""
    titles = [list(TARGET_COLUMNS), ["---"] * len(TARGET_COLUMNS)]
    lines = [*titles, *(cells(row, TARGET_COLUMNS) for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def case_json(measured: Measured, judged: bool) -> dict[str, Any]:
    """Return a case with the results of its sides and the verdicts on its targets."""
    targets = [
        asdict(target) | {"verdict": verdict(measured, target, judged)}
        for target in measured.case.targets
    ]
    return asdict(measured.case) | {
        "tokens_per_step": measured.case.tokens,
        "sides": {label: _side(result) for label, result in measured.sides.items()},
        "missing": measured.missing,
        "out_of_time": measured.out_of_time,
        "figures": measured.figures,
        "targets": targets,
    }


def _side(result: SideResult) -> dict[str, Any]:
    return {
        "ready_s": result.ready_s,
        "step": result.step if result.step.runs_s else None,
        "losses": result.answers[0].losses,
        "memory": result.memory,
        "facts": result.facts,
    }
