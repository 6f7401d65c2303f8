"""Which loss local steps reach, beside synchronous training on the same tokens.

Peers are played in one process, with the real update rule, optimizer and codecs; only the network
is not there. All rows see the same samples. The reference is DiLoCo as one would
write it in plain PyTorch. Rows:

    synchronous   one optimizer step on all peers' sequences at once
    reference     DiLoCo, nothing of ours
    float32, int8, int4     local steps with these codecs, by parts with owners
    muon          float32; Muon inside
    synchronous-muon        synchronous, with PyTorch's Muon
    sparse                  of 4,096 numbers 256 travel
    sparse-senders          sparse; the mean of a number is over those that sent it
    sparse-forgetful        sparse; every tenth round one of them begins anew: what it kept is lost
    published     SparseLoCo, nothing of ours: everybody's largest numbers to everybody
    uneven        float32; speeds 1:2:4, in turn
    churning      float32; the first peer is away every third round, and comes back empty
    late-1, -5, -15         float32; peers train on while a round is decided: so many inner steps

    python benchmarks/parity.py --rounds 300 --seeds 1 --jobs 2
    python benchmarks/parity.py --rows synchronous int4 --inner-steps 100 --peers 8
"""

import argparse
import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from parity_model import Size, validation_loss
from parity_sides import Play, ours, published, reference, synchronous
from picture import draw
from sides import machine, positive, publish
from torch import Tensor

from atom.optim.muon import Muon
from atom.optim.rate import RateSettings
from atom.swarm.exchange.codec import codec_named

Side = Callable[[Play], Iterator[Tensor]]


def uneven(play: Play) -> Iterator[Tensor]:
    speeds = itertools.islice(itertools.cycle((1, 2, 4)), play.peers)
    return ours(play, codec_named("float32"), tuple(speeds))


def muon(play: Play) -> Iterator[Tensor]:
    return ours(replace(play, optimizer=Muon), codec_named("float32"))


def synchronous_muon(play: Play) -> Iterator[Tensor]:
    return synchronous(replace(play, optimizer=Muon))


def by(name: str, **how: Any) -> Side:
    return partial(ours, codec=codec_named(name), **how)


SYNCHRONOUS = "synchronous"
LATE = (1, 5, 15)
ROWS: dict[str, Side] = {
    SYNCHRONOUS: synchronous,
    "reference": reference,
    **{name: by(name) for name in ("float32", "int8", "int4", "sparse")},
    "sparse-senders": by("sparse", over_senders=True),
    "sparse-forgetful": by("sparse", forgets_every=10),
    "published": published,
    "muon": muon,
    "synchronous-muon": synchronous_muon,
    "uneven": uneven,
    "churning": by("float32", away_every=3),
    **{f"late-{steps}": by("float32", late=steps) for steps in LATE},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    for name, usual in {
        "rounds": 300, "peers": 4, "inner-steps": 30, "sequences": 12, "layers": 4, "width": 64,
        "jobs": 2, "every": 20,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=positive, default=usual)
    parser.add_argument("--picture", help="a file for the curves")
    parser.add_argument("--device", default="cpu", help="for passes: cuda for larger models")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--outer-rate", type=float, default=0.9)
    parser.add_argument("--outer-momentum", type=float, default=0.8)
    return parser.parse_args()


def curve(job: tuple[str, Play, int]) -> list[float]:
    """Validation losses of a row, every so many rounds and at the end."""
    name, play, every = job
    torch.set_num_threads(1)
    began, losses = time.monotonic(), []
    for round, weights in enumerate(ROWS[name](play), 1):
        if round % every == 0 or round == play.rounds:
            losses.append(validation_loss(play.size, weights))
            took = time.monotonic() - began
            sys.stderr.write(f"{name}, {play.seed}: {round} {losses[-1]:.4f}, {took:.0f} s\n")
    return losses


def by_round(
    curves: Mapping[tuple[str, int], Sequence[float]], every: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Where each loss was taken."""
    places = [*range(every, rounds, every), rounds]
    return {
        f"{row}, seed {seed}": list(zip(places, losses, strict=True))
        for (row, seed), losses in curves.items()
    }


def title_of(o: argparse.Namespace) -> str:
    elements = Size(o.layers, o.width).layout.total_elements
    return f"{elements:,} parameters, {o.peers} peers, {o.inner_steps} inner steps"


def main() -> None:
    o = arguments()
    rate = RateSettings(o.rate, o.rate / 10, max(o.rounds // 40, 1), "cosine", o.rounds)
    size = Size(o.layers, o.width, device=o.device)
    play = Play(
        size, o.peers, o.inner_steps, o.rounds, o.sequences, rate, o.outer_rate,
        o.outer_momentum, 0,
    )  # fmt: skip
    jobs = [(row, replace(play, seed=seed), o.every) for row in o.rows for seed in o.seeds]
    with multiprocessing.get_context("spawn").Pool(o.jobs) as pool:
        found = pool.map(curve, jobs, chunksize=1)
    curves = dict(zip([(row, each.seed) for row, each, _ in jobs], found, strict=True))
    if o.picture:
        draw(Path(o.picture), by_round(curves, o.every, o.rounds), title_of(o), "round")
    last = {row: [curves[row, seed][-1] for seed in o.seeds] for row in o.rows}
    means = {row: statistics.mean(losses) for row, losses in last.items()}
    base = means.get(SYNCHRONOUS)
    rows = [
        (row, f"{means[row]:.4f}", f"{max(last[row]) - min(last[row]):.4f}",
         f"{100 * (means[row] / base - 1):+.1f} %" if base else "")
        for row in o.rows
    ]  # fmt: skip
    body = {
        "benchmark": "parity",
        "machine": machine(),
        "parameters": play.size.layout.total_elements,
        "settings": vars(o),
        "curves": {f"{row}, seed {seed}": losses for (row, seed), losses in curves.items()},
    }
    publish(("row", "validation loss", "spread", "beside synchronous"), rows, body)


if __name__ == "__main__":
    main()
