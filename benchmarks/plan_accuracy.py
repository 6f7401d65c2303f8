"""How well a plan foretells a pass: the planner's seconds beside the engine's, on the same choice.

Per model, three amounts of device memory: the least that its layers fit into (swapped), half way to
all (partly), no limit (resident). In one process and in turn: the profile is measured again, the
choice's seconds are foretold from it, the engine carries the choice out, right after what an
optimizer step leaves behind (nothing is loaded). Medians of all of these are compared.

On a machine with other work, wall time says little. On a CPU the same is therefore done in the
working threads' own seconds as well: the profile's against those of the engine's events, both put
through the same timeline ("own"); and that timeline, fed with the wall time of the engine's own
events, against the pass they come from ("lanes"). Needs torch alone (`llama`: transformers).

    python benchmarks/plan_accuracy.py
    python benchmarks/plan_accuracy.py --device cuda --models gpt3 wide deep skips llama
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import torch
from plan_models import MODELS, Batch, Model, build
from planned import Planner
from played import Played, Stand, thread_seconds
from sides import machine, positive, publish

from atom.base.errors import UserError
from atom.graph.profile.measured import Stopwatch, measure_layers, measure_link, now
from atom.graph.profile.seconds import Profile, measured_graph
from atom.graph.trace import trace
from atom.plan.choice import Choice

USUAL = ["gpt3", "wide", "deep", "skips"]
TITLES = ["model", "memory", "cut", "stay", "C", "foretold s", "measured s", "ratio", "quartiles",
          "own", "lanes", "busy foretold", "busy", "tokens/s"]  # fmt: skip


@dataclass
class Row:
    """One choice, and what was foretold and measured of it, run by run."""

    model: str
    memory: str
    choice: Choice
    tokens: int
    foretold: list[Choice] = field(default_factory=list)
    foretold_own_s: list[float] = field(default_factory=list)
    played: list[Played] = field(default_factory=list)

    def add(self, foretold: Choice, own: Choice | None, played: Played) -> None:
        self.foretold.append(foretold)
        self.played.append(played)
        if own is not None:
            self.foretold_own_s.append(own.timeline.seconds)

    @property
    def foretold_s(self) -> list[float]:
        return [choice.timeline.seconds for choice in self.foretold]

    @property
    def measured_s(self) -> list[float]:
        return [played.seconds for played in self.played]

    @property
    def ratio(self) -> float:
        """Foretold to measured; below one: the pass took longer."""
        return median(self.foretold_s) / median(self.measured_s)

    @property
    def ratio_own(self) -> float | None:
        """Of the threads' own seconds: how right the profile is."""
        measured = [played.own_s for played in self.played if played.own_s is not None]
        return median(self.foretold_own_s) / median(measured) if measured else None

    @property
    def ratio_lanes(self) -> float:
        """Of a pass put together from its own events: how right the timeline is."""
        return median(played.replayed_s / played.seconds for played in self.played)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Of each run's ratio."""
        ratios = [f / m for f, m in zip(self.foretold_s, self.measured_s, strict=True)]
        if len(ratios) == 1:
            return ratios[0], ratios[0]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        return low, high

    def cells(self) -> list[str]:
        own = "" if self.ratio_own is None else f"{self.ratio_own:.2f}"
        measured_s = median(self.measured_s)
        return [
            self.model,
            self.memory,
            str(len(self.choice.cut.pieces)),
            f"{len(self.choice.arrangement.resident)}/{len(self.choice.arrangement.kept)}",
            str(self.choice.micro_batches),
            f"{median(self.foretold_s):.4f}",
            f"{measured_s:.4f}",
            f"{self.ratio:.2f}",
            "{:.2f}-{:.2f}".format(*self.quartiles),
            own,
            f"{self.ratio_lanes:.2f}",
            f"{median(c.timeline.computing for c in self.foretold):.2f}",
            f"{median(played.computing for played in self.played):.2f}",
            f"{self.tokens / measured_s:.0f}",
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "memory": self.memory,
            "sub_models": len(self.choice.cut.pieces),
            "resident": sorted(self.choice.arrangement.resident),
            "kept": sorted(self.choice.arrangement.kept),
            "micro_batches": self.choice.micro_batches,
            "device_bytes": self.choice.memory.total_bytes,
            "foretold_s": self.foretold_s,
            "measured_s": self.measured_s,
            "ratio": self.ratio,
            "ratio_quartiles": self.quartiles,
            "ratio_own_seconds": self.ratio_own,
            "ratio_lanes": self.ratio_lanes,
            "computing_foretold": median(c.timeline.computing for c in self.foretold),
            "computing": median(played.computing for played in self.played),
            "tokens_per_s": self.tokens / median(self.measured_s),
        }


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    load_before = os.getloadavg()
    device = torch.device(options.device)
    rows: list[Row] = []
    for name in options.models:
        rows += _rows(name, device, options.runs, options.micro_batches)
    body = {
        "benchmark": "plan_accuracy",
        "machine": machine(),
        "device": options.device,
        "threads": torch.get_num_threads(),
        "load_before": load_before,
        "load_after": os.getloadavg(),
        "rows": [row.to_json() for row in rows],
        "ratio_by_model": {
            name: median(row.ratio for row in rows if row.model == name) for name in options.models
        },
    }
    publish(TITLES, [row.cells() for row in rows], body)


def _rows(name: str, device: torch.device, runs: int, micro_batches: int) -> list[Row]:
    """All amounts of memory for one model, measured in turn."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = build(name, device.type == "cuda", dtype)
    planner = Planner(trace(model.module, model.micro_batch(0)), device, micro_batches)
    profile = _measured(planner)
    rows, stands = [], list[Stand]()
    try:
        for memory, device_bytes in planner.budgets(profile).items():
            choice = planner.choose(profile, device_bytes)
            tokens = choice.micro_batches * model.micro_batch_tokens
            rows.append(Row(name, memory, choice, tokens))
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
    """Profiles again, then every choice's pass."""
    profile = _measured(planner)
    own = _own_profile(planner)
    for row, stand in zip(rows, stands, strict=True):
        played = stand.play(_batches(model, row.choice.micro_batches))
        if not warm_up:
            foretold_own = None if own is None else planner.again(own, row.choice)
            row.add(planner.again(profile, row.choice), foretold_own, played)


def _measured(planner: Planner, stopwatch: Stopwatch = now) -> Profile:
    graph, device = planner.graph, planner.device
    layers = measure_layers(graph, device, stopwatch=stopwatch)
    return measured_graph(graph, device, layers, measure_link(device, stopwatch=stopwatch))


def _own_profile(planner: Planner) -> Profile | None:
    """In the seconds of the thread that works, where all the work is that thread's."""
    if planner.device.type != "cpu" or torch.get_num_threads() > 1:
        return None
    return _measured(planner, thread_seconds)


def _batches(model: Model, count: int) -> list[Batch]:
    return [model.micro_batch(number) for number in range(count)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    parser.add_argument("--models", nargs="+", choices=MODELS, metavar="MODEL", default=USUAL)
    parser.add_argument("--runs", type=positive, default=7)
    parser.add_argument("--micro-batches", type=positive, default=4, help="the most in a pass")
    parser.add_argument("--threads", type=positive, default=1, help="computing, on a CPU")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except UserError as problem:
        sys.exit(f"error: {problem.message}\nhint:  {problem.hint}")
