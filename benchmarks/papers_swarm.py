"""Rows: pipelines beside Atom's swarm on the same lines, and both when nodes are killed.

Atom's side is that of `home_swarm.py`: real daemons whose passes sleep. Every card sustains 117.6
TFLOP/s (an RTX 4090, as there). Pipelines count six operations per parameter and token. Atom's
peers compute forward twice and wait for loads: 81.6, as `atom plan` foresees for a swapped 2.7B.
"""

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from home_scale import PARAMETERS
from home_swarm import BOUND_S, one_row, terms_of
from home_world import Terms, after_rounds, standing
from papers_figures import (
    SEQUENCE_TOKENS,
    STEP_TOKENS,
    Fate,
    Found,
    Pipeline,
    Progress,
    Scale,
    Trial,
    found,
)
from papers_pipeline import SCHEDULES, running
from ring_links import Seat, shaped

MODEL_DIMS = {"125M": 768, "1.3B": 2048, "2.7B": 2560, "6.7B": 4096}
"""GPT-3, table 2.1."""
CARD_FLOPS, SWAPPED_TFLOPS = 117.6e12, 81.6
MICRO_BATCHES = (16, 32, 64)
SMALL_BOUNDARY_BYTES = 1 << 17
"""Of one sequence."""
SECONDS, QUEUE_MS = 3.0, 50.0
"""The pipelines' seconds to one here; what a real line's queue holds."""
CASES = (
    "1.3B:4:400", "125M:4:400", "1.3B:4:800", "1.3B:4:10000", "1.3B:2:400", "1.3B:8:400",
    "6.7B:4:400",
)  # fmt: skip
PIPELINES, ATOM = "46.3 and 18.3 % busy", "up to 20 x, 91.9 % busy"
NODES, VICTIMS = 9, 3
CALM_S, AWAY_S, BACK_S = 60.0, 60.0, 120.0
CHECKPOINT_STEPS = 5
PATIENCE_S = 300.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases", type=_case, nargs="+", default=[_case(each) for each in CASES],
        help="of rows `lines` and `every-step`: model:nodes:Mbit/s; 10000 stands for unshaped",
    )  # fmt: skip


def lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    _need_root()
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
        times = {each.schedule: row["tokens_per_s"] / each.tokens_per_s for each in tuned}
        most = row["tokens_per_s"] / real.most_tokens_per_s
        told = ", ".join(f"{ratio:.1f} x {schedule}" for schedule, ratio in times.items())
        yield {
            "case": f"{case}, Atom, local steps", "ours": f"{_told(row)}, {told}",
            "theirs": ATOM, "times": times, "times_most": most, **row,
        }  # fmt: skip


def every_step(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    _need_root()
    for (model, nodes, mbit), codec in itertools.product(options.cases, ("float32", "int8")):
        row = one_row(nodes, mbit, model, _atom("every-step", codec))
        case = f"{model}, {nodes} nodes, {mbit:g} Mbit/s, Atom, every step, {codec}"
        yield {"case": case, "ours": _told(row), "theirs": ATOM, **row}


def killed(_: argparse.Namespace) -> Iterator[dict[str, Any]]:
    _need_root()
    atom = _atom("local-steps", "int4", round_seconds=10.0)
    round_, terms = terms_of(NODES, 400.0, "1.3B", atom)
    pipeline = _real("1.3B", NODES, 400.0)
    sides = {
        "GPipe": lambda: _killed_pipeline(pipeline, Scale(10.0, 64.0)),
        "Atom, local steps": lambda: _killed_swarm(
            terms, round_.steps * STEP_TOKENS / terms.small.passes
        ),
    }
    for side, run in sides.items():
        progress, killed_at = run()
        back_at = killed_at + AWAY_S
        fate = Fate.of(progress, (killed_at - CALM_S, killed_at, back_at, back_at + BACK_S))
        yield {
            "case": f"1.3B, {VICTIMS} of {NODES} nodes killed and back, 400 Mbit/s, {side}",
            "ours": f"{fate.away:.0%} of the speed before for {AWAY_S:.0f} s without them, "
            f"{fate.back:.0%} in the next {BACK_S:.0f} s, {fate.still_s:.0f} s without progress",
            "theirs": "not given here", **asdict(fate), "progress": progress,
            "killed_at": killed_at, "load": os.getloadavg()[0],
        }  # fmt: skip


ROWS = {"lines": lines, "every-step": every_step, "killed": killed}


def _need_root() -> None:
    if os.geteuid() != 0:
        raise SystemExit("error: networks of their own need root")


def _case(text: str) -> tuple[str, int, float]:
    model, nodes, mbit = text.split(":")
    if model not in MODEL_DIMS:
        raise ValueError(text)
    return model, int(nodes), float(mbit)


def _real(model: str, nodes: int, mbit: float) -> Pipeline:
    return Pipeline(PARAMETERS[model], MODEL_DIMS[model], nodes, CARD_FLOPS, mbit * 1e6 / 8)


def _atom(rule: str, codec: str, **more: Any) -> argparse.Namespace:
    """As `home_swarm.py` has them."""
    usual = {
        "rule": rule, "codec": codec, "inner_steps": 30, "passes": 10, "rounds": 4,
        "useful_tflops": SWAPPED_TFLOPS, "faults": [], "undialled": 0, "delay_ms": 0.0,
        "round_seconds": 20.0, "model_dim": 256,
    }  # fmt: skip
    return argparse.Namespace(**(usual | more))


def _told(row: Mapping[str, Any]) -> str:
    return f"{row['tokens_per_s']:,.0f} tokens/s, {row['busy_real']:.1%} busy"


def _tuned(real: Pipeline) -> Iterator[Found]:
    """Each schedule with the micro-batches that suit it: they are tried for a step each, and two
    more steps are measured with the best."""
    scale = Scale(SECONDS, real.boundary_bytes(SEQUENCE_TOKENS) / SMALL_BOUNDARY_BYTES)
    trials = [
        Trial.of(real, scale, schedule, count, 1)
        for schedule, count in itertools.product(SCHEDULES, MICRO_BATCHES)
    ]
    tried = _measured(real, scale, trials)
    best = [
        max((each for each in tried if each.schedule == name), key=lambda each: each.tokens_per_s)
        for name in SCHEDULES
    ]
    again = [Trial.of(real, scale, each.schedule, each.micro_batches, 2) for each in best]
    yield from _measured(real, scale, again)


def _measured(real: Pipeline, scale: Scale, trials: Sequence[Trial]) -> list[Found]:
    with _lines(real, scale) as (seats, folder), running(seats, folder, trials) as stages:
        stages.hear(time.time() + PATIENCE_S)
        assert stages.has_ended
        return found(trials, scale, stages.steps)


@contextmanager
def _lines(real: Pipeline, scale: Scale) -> Iterator[tuple[Sequence[Seat], Path]]:
    """Seats for the stages, and a folder."""
    mbit = scale.line(real.line_bytes_per_s) * 8 / 1e6
    with (
        tempfile.TemporaryDirectory(prefix="atom-papers-") as folder,
        shaped([mbit] * real.nodes, QUEUE_MS / scale.seconds) as seats,
    ):
        yield seats, Path(folder)


def _killed_pipeline(real: Pipeline, scale: Scale) -> tuple[Progress, float]:
    """No stage can be done without: the others end, all meet again when it is back, and go on from
    the last checkpoint. To start a process and to load a checkpoint costs nothing here."""
    trial = Trial.of(real, scale, "GPipe", max(MICRO_BATCHES), 10**6)
    with _lines(real, scale) as (seats, folder):
        with running(seats, folder, [trial]) as stages:
            stages.hear(time.time() + PATIENCE_S, lambda: stages.steps[0])
            killed_at = time.time() + CALM_S  # that step is over, and no part of the speed before
            stages.hear(killed_at)
            for process in stages.processes[-VICTIMS:]:
                process.kill()
            stages.hear(killed_at + AWAY_S / 2)  # most who are left end by themselves; then all do
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
    return [(at, number * float(STEP_TOKENS)) for number, at in steps], killed_at


def _killed_swarm(terms: Terms, sequence_tokens: float) -> tuple[Progress, float]:
    with standing(terms) as world:
        peers = world.swarm.peers
        for peer in peers:
            peer.ask("resume")
        after_rounds(world, peers, 1, 3 * BOUND_S)
        _sleep_until(time.time() + CALM_S)
        killed_at = time.time()
        for peer in peers[-VICTIMS:]:
            peer.kill()
        _sleep_until(killed_at + AWAY_S)
        for peer in peers[-VICTIMS:]:
            peer.start()
        _sleep_until(killed_at + AWAY_S + BACK_S)
        rounds = world.swarm.founder.rounds
    counts = itertools.accumulate(event["sequences"] for event in rounds)
    times = [event["time"] for event in rounds]
    return [(at, n * sequence_tokens) for at, n in zip(times, counts, strict=True)], killed_at


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))  # they train on their own: nothing to wait on
