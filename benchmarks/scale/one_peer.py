"""A swarm of one beside plain PyTorch, on nanoGPT's recipe for a processor.

12 sequences of 64 tokens a round, 4 layers, 128 wide, a byte vocabulary: the smallest useful run,
so the cost of a round beside its pass shows. One side is a real daemon (`atom start`) with its DHT,
its certified rounds and its journal; the other is a loop of forward, backward, clipping and
`torch.optim.AdamW`, with the same number of threads. Both train the same model on text of the same
kind, one after the other, `--turns` times.

    python -m benchmarks.scale.one_peer
    python -m benchmarks.scale.one_peer --rounds 50 --turns 1
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from atom.models.gpt3 import GPT3, GPT3Config, initialise
from benchmarks.shared.program import Timing, parser_of, publish, ratio
from benchmarks.shared.run_text import run_text

SEQUENCES, TOKENS, LAYERS, HEADS, DIM, VOCABULARY = 12, 64, 4, 4, 128, 257
WARM_UP = 10
"""Rounds at the start that are not counted."""
LIMIT_S = 600.0
MODEL = {"layers": LAYERS, "heads": HEADS, "model_dim": DIM, "sequence_tokens": TOKENS}
SELDOM = {"every_rounds": 100_000}
BATCH = {"global_sequences": SEQUENCES, "micro_batch_sequences": SEQUENCES}


def main() -> None:
    options = parser_of(__doc__, rounds=200, turns=2).parse_args()
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(options.turns):
        ours += daemon_rounds(options.rounds)
        theirs += plain_steps(options.rounds)
    daemon, plain = Timing(tuple(ours)), Timing(tuple(theirs))
    rows = [
        {"side": name, "seconds a round": side, "ratio": ratio(side, plain)}
        for name, side in {"swarm of one": daemon, "plain PyTorch": plain}.items()
    ]
    columns = {"side": "", "seconds a round": ".4f", "ratio": ".2f"}
    publish("one-peer", rows, columns, rounds=options.rounds * options.turns)


def daemon_rounds(rounds: int) -> list[float]:
    """Return the seconds between successive rounds of a real daemon."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "one.toml"
        settings = {"rounds": rounds + WARM_UP, "seed": 1337}
        run.write_text(run_text("one", run=settings, model=MODEL, batch=BATCH, snapshot=SELDOM))
        state = Path(folder) / "state"
        command = [sys.executable, "-m", "atom", "start", str(run), "--state", str(state)]
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
        events = (state / "events.jsonl").read_text(encoding="utf-8").splitlines()
    told = [event for event in map(json.loads, events) if event["event"] == "round"]
    times = [event["time"] for event in told][WARM_UP - 1 :]
    return [after - before for before, after in itertools.pairwise(times)]


def plain_steps(steps: int) -> list[float]:
    """Return the seconds of each step of a plain loop."""
    model = GPT3(GPT3Config(LAYERS, HEADS, DIM, TOKENS, VOCABULARY, dropout=0.0))
    initialise(model, 1337)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.randint(256, (SEQUENCES, TOKENS + 1), generator=torch.Generator().manual_seed(1))
    seconds = []
    for _ in range(steps + WARM_UP):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(text[:, :-1].contiguous(), text[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    return seconds[WARM_UP:]


if __name__ == "__main__":
    main()
