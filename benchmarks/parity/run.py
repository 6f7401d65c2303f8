"""Loss of local steps beside synchronous training on the same tokens.

Peers are played in one process, with the real update rule, optimizer and codecs, without a network.
All rows see the same samples. The reference is DiLoCo in plain PyTorch. Rows:

    synchronous             one optimizer step on all peers' sequences at once
    reference               DiLoCo without any of Atom's code
    float32, int8, int4     local steps with these codecs, by parts with owners
    sparse                  of 4,096 numbers 256 travel
    muon                    float32; Muon inside
    synchronous-muon        synchronous, with PyTorch's Muon
    uneven                  float32; speeds 1:2:4, in turn
    churning                float32; the first peer misses every third round and returns empty
    late-1, -5, -15         float32; peers take so many inner steps while a round is decided

    python -m benchmarks.parity.run --rounds 300 --seeds 1 --jobs 2
    python -m benchmarks.parity.run --rows synchronous int4 --inner-steps 100 --peers 8
    python -m benchmarks.parity.run --rows float32 --rounds 2 --inner-steps 2 --layers 1
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from atom.optim.adamw import AdamW
from atom.optim.muon import Muon
from atom.optim.optimizer import Optimizer
from atom.optim.rate import RateSettings
from atom.swarm.exchange.codec import codec_named
from benchmarks.parity.model import Size, validation_loss
from benchmarks.parity.sides import Play, ours, reference, synchronous
from benchmarks.shared.program import parser_of, publish, say

Side = Callable[[Play], Iterator[Tensor]]
OUTER_RATE, OUTER_MOMENTUM, SEQUENCES, EVERY = 0.9, 0.8, 12, 20
"""Sequences of an inner step; rounds between two validation losses."""
COLUMNS = {"row": "", "validation loss": ".4f", "spread": ".4f", "beside synchronous": "+.1%"}


def by(name: str, optimizer: type[Optimizer] = AdamW, **how: Any) -> Side:
    """Return local steps with a codec and an inner optimizer; `how`: see `ours`."""
    codec = codec_named(name)
    return lambda play: ours(replace(play, optimizer=optimizer), codec, **how)


SYNCHRONOUS = "synchronous"
LATE = (1, 5, 15)
ROWS: dict[str, Side] = {
    SYNCHRONOUS: synchronous,
    "reference": reference,
    **{name: by(name) for name in ("float32", "int8", "int4", "sparse")},
    "muon": by("float32", Muon),
    "synchronous-muon": lambda play: synchronous(replace(play, optimizer=Muon)),
    "uneven": by("float32", speeds=(1, 2, 4)),
    "churning": by("float32", away_every=3),
    **{f"late-{steps}": by("float32", late=steps) for steps in LATE},
}


def curve(job: tuple[str, Play]) -> list[tuple[int, float]]:
    """Return rounds and validation losses of a row, every so many rounds and at the end."""
    name, play = job
    torch.set_num_threads(1)
    began, losses = time.monotonic(), list[tuple[int, float]]()
    for round, weights in enumerate(ROWS[name](play), 1):
        if round % EVERY == 0 or round == play.rounds:
            losses.append((round, validation_loss(play.size, weights)))
            took = time.monotonic() - began
            say(f"{name}, {play.seed}: {round} {losses[-1][1]:.4f}, {took:.0f} s")
    return losses


def main() -> None:
    parser = parser_of(
        __doc__,
        rows={"nargs": "+", "choices": ROWS, "default": list(ROWS)},
        seeds=[1],
        rounds=300,
        peers=4,
        inner_steps=30,
        layers=4,
        jobs=2,
        rate=2e-3,
    )
    o = parser.parse_args()
    rate = RateSettings(o.rate, o.rate / 10, max(o.rounds // 40, 1), "cosine", o.rounds)
    size = Size(o.layers, 64)
    play = Play(
        size, o.peers, o.inner_steps, o.rounds, SEQUENCES, rate, OUTER_RATE, OUTER_MOMENTUM, 0
    )
    jobs = [(row, replace(play, seed=seed)) for row in o.rows for seed in o.seeds]
    with multiprocessing.get_context("spawn").Pool(o.jobs) as pool:
        found = pool.map(curve, jobs, chunksize=1)
    curves = dict(zip([(row, each.seed) for row, each in jobs], found, strict=True))
    rows = list[dict[str, Any]]()
    for row in o.rows:
        last = [curves[row, seed][-1][1] for seed in o.seeds]
        mean = statistics.mean(last)
        rows.append({"row": row, "validation loss": mean, "spread": max(last) - min(last)})
        if rows[0]["row"] == SYNCHRONOUS:
            rows[-1]["beside synchronous"] = mean / rows[0]["validation loss"] - 1
    named = {f"{row}, seed {seed}": losses for (row, seed), losses in curves.items()}
    parameters = play.size.layout.total_elements
    publish("parity", rows, COLUMNS, parameters=parameters, settings=vars(o), curves=named)


if __name__ == "__main__":
    main()
