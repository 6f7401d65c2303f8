"""A swarm of one beside plain PyTorch, on nanoGPT's recipe for a processor.

12 sequences of 64 tokens a round, 4 layers, 128 wide, a byte vocabulary: the smallest run that
trains anything, so whatever a round costs beside its pass shows. *Ours* is a real daemon
(`atom start`) with its DHT, its certified rounds and its journal; *theirs* is a loop of forward,
backward, clipping and `torch.optim.AdamW`, with the same number of threads. Both train the same
model on text of the same kind, one after the other, `--turns` times.

    python benchmarks/swarm_of_one.py
    python benchmarks/swarm_of_one.py --rounds 50 --turns 1      # in short
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from sides import Timing, machine, positive, publish, ratio
from torch import nn

from atom.models.gpt3 import GPT3, GPT3Config, initialise

SEQUENCES, TOKENS, LAYERS, HEADS, DIM, VOCABULARY = 12, 64, 4, 4, 128, 257
WARM_UP = 10
"""Rounds at the start that are not counted."""
LIMIT_S = 600.0
RUN = f"""
[run]
name = "one"
rounds = {{rounds}}
seed = 1337

[model]
family = "gpt3"
layers = {LAYERS}
heads = {HEADS}
model_dim = {DIM}
sequence_tokens = {TOKENS}
precision = "float32"

[data]
source = "python-stdlib"
tokenizer = "bytes"
max_bytes = "2 MB"

[batch]
global_sequences = {SEQUENCES}
micro_batch_sequences = {SEQUENCES}

[optimizer]
learning_rate = 1e-3
clip_norm = 1.0

[snapshot]
every_rounds = 100000
"""


def main() -> None:
    options = _options()
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(options.turns):
        ours += daemon_rounds(options.rounds)
        theirs += plain_steps(options.rounds)
    sides = {"swarm of one": Timing(tuple(ours)), "plain PyTorch": Timing(tuple(theirs))}
    rows = [[name, f"{1e3 * side.median_s:.1f}"] for name, side in sides.items()]
    times = ratio(sides["swarm of one"], sides["plain PyTorch"])
    body = {
        "benchmark": "swarm-of-one",
        "machine": machine(),
        "rounds": options.rounds * options.turns,
        "median_ms": {name: 1e3 * side.median_s for name, side in sides.items()},
        "ratio": times,
    }
    publish(["side", "ms a round"], [*rows, ["ratio", f"{times:.2f}"]], body)


def daemon_rounds(rounds: int) -> list[float]:
    """Seconds from each round of a real daemon to the next."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "one.toml"
        run.write_text(RUN.format(rounds=rounds + WARM_UP), encoding="utf-8")
        state = Path(folder) / "state"
        command = [sys.executable, "-m", "atom", "start", str(run), "--state", str(state)]
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S)
        events = (state / "events.jsonl").read_text(encoding="utf-8").splitlines()
    told = [event for event in map(json.loads, events) if event["event"] == "round"]
    times = [event["time"] for event in told][WARM_UP - 1 :]
    return [after - before for before, after in itertools.pairwise(times)]


def plain_steps(steps: int) -> list[float]:
    """Seconds of each step of a plain loop."""
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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=positive, default=200)
    parser.add_argument("--turns", type=positive, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
