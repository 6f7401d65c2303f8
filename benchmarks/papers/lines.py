"""Rows `lines`, `every-step`, `killed`: pipelines beside Atom's swarm on the same lines.

Atom's side is `home/run.py`: real daemons whose passes sleep. Every card sustains 117.6 TFLOP/s (an
RTX 4090). Pipelines count six operations per parameter and token. Atom's peers compute forward
twice and wait for loads: 81.6, as `atom plan` estimates for a swapped 2.7B.
"""

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.home.run import one_row, terms_of
from benchmarks.home.small_round import PARAMETERS
from benchmarks.home.world import Terms, standing
from benchmarks.papers.figures import SEQUENCE_TOKENS, Curve, Found, Pipeline, Scale, Trial, loss_at
from benchmarks.papers.pipeline import PATIENCE_S, SCHEDULES, measured, on_lines, running
from benchmarks.shared.real_swarm import swarm_in

MODEL_DIMS = {"125M": 768, "1.3B": 2048, "2.7B": 2560, "6.7B": 4096}
"""GPT-3, table 2.1."""
CARD_FLOPS, SWAPPED_TFLOPS = 117.6e12, 81.6
MICRO_BATCHES = (16, 32, 64)
SMALL_BOUNDARY_BYTES = 1 << 17
"""Bytes of one sequence at a boundary, in small."""
SECONDS = 3.0
"""Seconds of a real pipeline per second here."""
CASES = (
    "1.3B:4:400", "125M:4:400", "1.3B:4:800", "1.3B:4:10000", "1.3B:2:400", "1.3B:8:400",
    "6.7B:4:400",
)  # fmt: skip
PIPELINES, ATOM = "46.3 and 18.3 % busy", "up to 20 x, 91.9 % busy"
PAPER_KILLED = "no break in the curve, training slows (12 GPUs, two to four killed)"
NODES, VICTIMS = 9, 3
CALM_S, AWAY_S, BACK_S = 120.0, 120.0, 240.0
LOOKS_S = 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0
"""Seconds from the begin."""
CHECKPOINT_STEPS = 5


def lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    need_root()
    for model, nodes, mbit in options.cases:
        real = _real(model, nodes, mbit)
        case = f"{model}, {nodes} nodes, {mbit:g} Mbit/s"
        tuned = list(_tuned(real))
        for each in tuned:
            ours = f"{each.tokens_per_s:,.0f} tokens/s, {each.busy:.1%} busy"
            yield {
                "case": f"{case}, {each.schedule} of {each.micro_batches} micro-batches",
                "ours": ours, "theirs": PIPELINES, **asdict(each), "load": os.getloadavg()[0],
            }  # fmt: skip
        row = one_row(nodes, mbit, model, _atom("local-steps", "int4"))
        times = {each.schedule: row["tokens/s"] / each.tokens_per_s for each in tuned}
        most = row["tokens/s"] / real.most_tokens_per_s
        told = ", ".join(f"{ratio:.1f} x {schedule}" for schedule, ratio in times.items())
        yield {
            "case": f"{case}, Atom, local steps", "ours": f"{_speed(row)}, {told}",
            "theirs": ATOM, "times": times, "times_most": most, **row,
        }  # fmt: skip


def every_step(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    need_root()
    for (model, nodes, mbit), codec in itertools.product(options.cases, ("float32", "int8")):
        row = one_row(nodes, mbit, model, _atom("every-step", codec))
        case = f"{model}, {nodes} nodes, {mbit:g} Mbit/s, Atom, every step, {codec}"
        yield {"case": case, "ours": _speed(row), "theirs": ATOM, **row}


def killed(_: argparse.Namespace) -> Iterator[dict[str, Any]]:
    need_root()
    small = {"passes": 30, "round_seconds": 40.0, "model_dim": 128, "tokens": 256}
    round_, terms = terms_of(NODES, 400.0, "1.3B", _atom("local-steps", "int4", **small))
    assert terms.small.passes == round_.steps  # a sequence stands for a step
    terms = replace(terms, validates=True)
    for side, run in {"GPipe": _killed_pipeline, "Atom, local steps": _killed_swarm}.items():
        began, curve = run(terms)
        losses = (
            f"{loss_at(curve, began + seconds):.2f} at {seconds:.0f} s" for seconds in LOOKS_S
        )
        yield {
            "case": f"1.3B, {VICTIMS} of {NODES} nodes killed and back, 400 Mbit/s, {side}",
            "ours": f"loss {', '.join(losses)}; killed at {CALM_S:.0f} s for {AWAY_S:.0f} s",
            "theirs": PAPER_KILLED, "began": began, "curve": curve,
            "real_seconds": terms.small.real_seconds, "load": os.getloadavg()[0],
        }  # fmt: skip


ROWS = {"lines": lines, "every-step": every_step, "killed": killed}


def need_root() -> None:
    if os.geteuid() != 0:
        raise SystemExit("error: network namespaces need root\nhint:  run this program as root")


def case_of(text: str) -> tuple[str, int, float]:
    model, nodes, mbit = text.split(":")
    if model not in MODEL_DIMS:
        raise ValueError(text)
    return model, int(nodes), float(mbit)


def _real(model: str, nodes: int, mbit: float) -> Pipeline:
    return Pipeline(PARAMETERS[model], MODEL_DIMS[model], nodes, CARD_FLOPS, mbit * 1e6 / 8)


def _atom(rule: str, codec: str, **more: Any) -> argparse.Namespace:
    """Return options of `home/run.py`."""
    usual = {
        "rule": rule, "codec": codec, "inner_steps": 30, "passes": 10, "rounds": 4,
        "useful_tflops": SWAPPED_TFLOPS, "faults": [], "undialled": 0, "delay_ms": 0.0,
        "round_seconds": 20.0, "model_dim": 256, "tokens": 8,
    }  # fmt: skip
    return argparse.Namespace(**(usual | more))


def _speed(row: Mapping[str, Any]) -> str:
    return f"{row['tokens/s']:,.0f} tokens/s, {row['real']:.1%} busy"


def _tuned(real: Pipeline) -> Iterator[Found]:
    """Yield each schedule with its best micro-batches.

    All numbers of micro-batches are tried for a step; two more steps are measured with the best.
    """
    scale = Scale(SECONDS, real.boundary_bytes(SEQUENCE_TOKENS) / SMALL_BOUNDARY_BYTES)
    trials = [
        Trial.of(real, scale, schedule, count, 1)
        for schedule, count in itertools.product(SCHEDULES, MICRO_BATCHES)
    ]
    tried = measured(real, scale, trials)
    best = [
        max((each for each in tried if each.schedule == name), key=lambda each: each.tokens_per_s)
        for name in SCHEDULES
    ]
    again = [Trial.of(real, scale, each.schedule, each.micro_batches, 2) for each in best]
    yield from measured(real, scale, again)


Course = tuple[float, Curve]
"""Begin, and validation losses since then."""


def _killed_pipeline(terms: Terms) -> Course:
    """Kill stages of a pipeline; return its course.

    A pipeline needs all stages: the others end, all meet again when the killed ones are back, and
    go on from the last checkpoint. Starting a process and loading a checkpoint cost nothing here.
    """
    real, scale = _real("1.3B", NODES, 400.0), Scale(terms.small.real_seconds, 64.0)
    trial = Trial.of(real, scale, "GPipe", max(MICRO_BATCHES), 10**6)
    with on_lines(real, scale) as (seats, folder):
        with running(seats, folder, [trial]) as stages:
            stages.hear(time.time() + PATIENCE_S, lambda: stages.steps[0])
            began = stages.steps[0][0].began
            killed_at = began + CALM_S
            stages.hear(killed_at)
            for process in stages.processes[-VICTIMS:]:
                process.kill()
            stages.hear(killed_at + AWAY_S / 2)  # the remaining stages end
            before = [step.ended for step in stages.steps[0]]
        (folder / "again").mkdir()
        with running(seats, folder / "again", [trial], killed_at + AWAY_S) as stages:
            stages.hear(killed_at + AWAY_S + BACK_S)
            after = [step.ended for step in stages.steps[0]]
    saved = len(before) - len(before) % CHECKPOINT_STEPS
    steps = [
        *enumerate(before, 1),
        (saved, max(killed_at, before[-1])),
        *enumerate(after, saved + 1),
    ]
    learned = _losses_of_one(terms, max(number for number, _ in steps))
    return began, [(at, learned[number]) for number, at in steps if number]


def _losses_of_one(terms: Terms, steps: int) -> dict[int, float]:
    """Return losses by step of one process with the swarm's model and text.

    A pipeline takes the same steps, in any cut.
    """
    of_one = replace(
        terms, rule="every-step", codec="float32", small=replace(terms.small, passes=1)
    )
    with (
        tempfile.TemporaryDirectory(prefix="atom-papers-") as folder,
        swarm_in(Path(folder), of_one.run_text("one", 1), ["one"], "auto") as swarm,
    ):
        swarm.found()
        swarm.until(lambda: swarm.founder.last_round >= steps, f"{steps} steps", PATIENCE_S)
        return {event["round"]: event["validation_loss"] for event in swarm.founder.rounds}


def _killed_swarm(terms: Terms) -> Course:
    """Kill peers of a swarm; return its course."""
    with standing(terms) as world:
        peers = world.swarm.peers
        for peer in peers:
            peer.ask("resume")
        began = time.time()
        _sleep_until(began + CALM_S)
        for peer in peers[-VICTIMS:]:
            peer.kill()
        _sleep_until(began + CALM_S + AWAY_S)
        for peer in peers[-VICTIMS:]:
            peer.start()
        _sleep_until(began + CALM_S + AWAY_S + BACK_S)
        rounds = world.swarm.founder.rounds
    return began, [(event["time"], event["validation_loss"]) for event in rounds]


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))  # the swarm trains on its own
