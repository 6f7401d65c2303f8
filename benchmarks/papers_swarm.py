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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from home_scale import PARAMETERS
from home_swarm import one_row, terms_of
from home_world import Terms, standing
from papers_figures import (
    SEQUENCE_TOKENS,
    Curve,
    Found,
    Pipeline,
    Scale,
    Trial,
    found,
    loss_at,
)
from papers_pipeline import SCHEDULES, running
from ring_links import Seat, shaped
from swarm_of_processes import swarm_in

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
CALM_S, AWAY_S, BACK_S = 120.0, 120.0, 240.0
LOOKS_S = 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0
"""From the beginning."""
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
    small = {"passes": 30, "round_seconds": 40.0, "model_dim": 128, "tokens": 256}
    round_, terms = terms_of(NODES, 400.0, "1.3B", _atom("local-steps", "int4", **small))
    assert terms.small.passes == round_.steps  # a sequence stands for a step, here and there
    terms = replace(terms, validates=True)
    for side, run in {"GPipe": _killed_pipeline, "Atom, local steps": _killed_swarm}.items():
        began, curve = run(terms)
        losses = (
            f"{loss_at(curve, began + seconds):.2f} at {seconds:.0f} s" for seconds in LOOKS_S
        )
        yield {
            "case": f"1.3B, {VICTIMS} of {NODES} nodes killed and back, 400 Mbit/s, {side}",
            "ours": f"loss {', '.join(losses)}; killed at {CALM_S:.0f} s for {AWAY_S:.0f} s",
            "theirs": "not given here", "began": began, "curve": curve,
            "real_seconds": terms.small.real_seconds, "load": os.getloadavg()[0],
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
        "round_seconds": 20.0, "model_dim": 256, "tokens": 8,
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


Told = tuple[float, Curve]
"""When it began, and the loss on text that is held back."""


def _killed_pipeline(terms: Terms) -> Told:
    """No stage can be done without: the others end, all meet again when it is back, and go on from
    the last checkpoint. To start a process and to load a checkpoint costs nothing here."""
    real, scale = _real("1.3B", NODES, 400.0), Scale(terms.small.real_seconds, 64.0)
    trial = Trial.of(real, scale, "GPipe", max(MICRO_BATCHES), 10**6)
    with _lines(real, scale) as (seats, folder):
        with running(seats, folder, [trial]) as stages:
            stages.hear(time.time() + PATIENCE_S, lambda: stages.steps[0])
            began = stages.steps[0][0].began
            killed_at = began + CALM_S
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
    learned = _losses_of_one(terms, max(number for number, _ in steps))
    return began, [(at, learned[number]) for number, at in steps if number]


def _losses_of_one(terms: Terms, steps: int) -> dict[int, float]:
    """By step, of one process that takes them with the swarm's model and text: so a pipeline would,
    however it is cut."""
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


def _killed_swarm(terms: Terms) -> Told:
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
    time.sleep(max(0.0, moment - time.time()))  # they train on their own: nothing to wait on
