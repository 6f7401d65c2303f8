"""Accuracy of a plan: the planner's seconds beside the engine's, on the same choice.

Per model, three amounts of device memory: the least that whole layers fit into (swapped), half way
to all (partly), no limit (resident). In one process and in turn: the profile is measured again, the
choice's seconds are estimated from the profile, the engine runs the choice in the state that an
optimizer step leaves behind (nothing is loaded). Medians of all runs are compared.

On a machine with other work, wall time says little. On a CPU the comparison is therefore repeated
in the seconds of the working threads: the profile against the engine's events, both put through one
timeline ("own"); and that timeline, fed with the wall time of the engine's events, against the pass
they come from ("lanes"). Needs torch alone (`llama`: transformers).

    python -m benchmarks.plan.accuracy
    python -m benchmarks.plan.accuracy --device cuda --models gpt3 wide deep skips llama
    python -m benchmarks.plan.accuracy --models tiny --runs 1
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import torch

from atom.base.errors import UserError
from atom.graph.costs.measured import Stopwatch, measure_layers, measure_link, now
from atom.graph.costs.seconds import Profile, measured_graph
from atom.graph.trace import trace
from atom.plan.choice import Choice
from benchmarks.plan.models import MODELS, Model, build
from benchmarks.plan.played import Played, Stand, thread_seconds
from benchmarks.shared.planner import Planner
from benchmarks.shared.program import parser_of, publish

COLUMNS = {
    "model": "", "memory": "", "sub-models": "", "resident": "", "kept": "", "C": "",
    "foretold_s": ".4f", "measured_s": ".4f", "ratio": ".2f", "low": ".2f", "high": ".2f",
    "own": ".2f", "lanes": ".2f", 
}  # fmt: skip


@dataclass
class Row:
    """One choice, with its estimates and measurements run by run."""

    model: str
    memory: str
    choice: Choice
    foretold: list[Choice] = field(default_factory=list)
    foretold_own_s: list[float] = field(default_factory=list)
    played: list[Played] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return medians over the runs; `low` and `high` are quartiles of the runs' ratios."""
        choice, foretold_s = self.choice, [each.timeline.seconds for each in self.foretold]
        measured_s = [played.seconds for played in self.played]
        ratios = [f / m for f, m in zip(foretold_s, measured_s, strict=True)]
        low, _, high = quantiles(ratios * 2, n=4, method="inclusive")
        own_s = [played.own_s for played in self.played if played.own_s is not None]
        return {
            "model": self.model,
            "memory": self.memory,
            "sub-models": len(choice.cut.pieces),
            "resident": len(choice.arrangement.resident),
            "kept": len(choice.arrangement.kept),
            "C": choice.micro_batches,
            "device_bytes": choice.memory.total_bytes,
            "foretold_s": median(foretold_s),
            "measured_s": median(measured_s),
            "ratio": median(foretold_s) / median(measured_s),
            "low": low,
            "high": high,
            "own": median(self.foretold_own_s) / median(own_s) if own_s else None,
            "lanes": median(played.replayed_s / played.seconds for played in self.played),
        }


def main() -> None:
    models = {"nargs": "+", "choices": MODELS, "default": ["gpt3", "wide", "deep", "skips"]}
    parser = parser_of(__doc__, device="cpu", models=models, runs=7, micro_batches=4, threads=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows, load_before = list[dict[str, Any]](), os.getloadavg()
    for name in options.models:
        device = torch.device(options.device)
        rows += [row.figures() for row in _rows(name, device, options.runs, options.micro_batches)]
    loads = {"load_before": load_before, "load_after": os.getloadavg()}
    by_model = {
        name: median(row["ratio"] for row in rows if row["model"] == name)
        for name in options.models
    }
    facts = {"device": options.device, "threads": options.threads, "ratio_by_model": by_model}
    publish("plan-accuracy", rows, COLUMNS, **facts, **loads)


def _rows(name: str, device: torch.device, runs: int, micro_batches: int) -> list[Row]:
    """Measure one model with all amounts of memory, in turn."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = build(name, device.type == "cuda", dtype)
    planner = Planner(trace(model.module, model.micro_batch(0)), device, micro_batches)
    profile = _measured(planner)
    rows, stands = [], list[Stand]()
    try:
        for memory, device_bytes in planner.budgets(profile).items():
            choice = planner.choose(profile, device_bytes)
            rows.append(Row(name, memory, choice))
            stands.append(Stand(planner.graph, choice, device))
        for run in range(runs + 1):
            _in_turn(planner, rows, stands, model, warm_up=run == 0)
    finally:
        for stand in stands:
            stand.close()
    return rows


def _in_turn(
    planner: Planner, rows: Sequence[Row], stands: Sequence[Stand], model: Model, warm_up: bool
) -> None:
    """Measure the profile again, then the pass of every choice."""
    profile = _measured(planner)
    own = _own_profile(planner)
    for row, stand in zip(rows, stands, strict=True):
        played = stand.play([model.micro_batch(n) for n in range(row.choice.micro_batches)])
        if not warm_up:
            row.foretold.append(planner.again(profile, row.choice))
            row.played.append(played)
            if own is not None:
                row.foretold_own_s.append(planner.again(own, row.choice).timeline.seconds)


def _measured(planner: Planner, stopwatch: Stopwatch = now) -> Profile:
    graph, device = planner.graph, planner.device
    layers = measure_layers(graph, device, stopwatch=stopwatch)
    return measured_graph(graph, device, layers, measure_link(device, stopwatch=stopwatch))


def _own_profile(planner: Planner) -> Profile | None:
    """Measure a profile in the seconds of the only working thread; None if there are several."""
    if planner.device.type != "cpu" or torch.get_num_threads() > 1:
        return None
    return _measured(planner, thread_seconds)


if __name__ == "__main__":
    try:
        main()
    except UserError as problem:
        sys.exit(f"error: {problem.message}\nhint:  {problem.hint}")
