"""The golden run: three peers on the processor train a small GPT for fifty rounds with fixed seeds.

Each round the peers accumulate unequal counts of sequences, average their gradients with the real
all-reduce over in-memory connections, and take the real optimizer step. Every change that claims to
leave training as it is must reproduce the recorded losses and the recorded digest of the weights.

    PYTHONPATH=. python tests/golden/golden_run.py      # prints the record of this machine as JSON
"""

import functools
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atom.graph.ir import Program
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initial_value, initialise
from atom.optim.adamw import AdamW
from atom.optim.clipping import gradient_norm
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice
from atom.swap.schedule import Arrangement
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock
from tests.swarm.threaded_ring import Swarm

RECORD = Path(__file__).parent / "golden_run.json"
PEERS, ROUNDS, SEED = 3, 50, 7
SEQUENCES, TOKENS, VOCABULARY = 2, 16, 61
"""Sequences per micro-batch, tokens per sequence."""

CONFIG = GPT3Config(3, 2, 32, sequence_tokens=TOKENS, vocabulary_size=VOCABULARY, dropout=0.0)
RATE = RateSettings(3e-3, 3e-4, warmup_rounds=5, decay="cosine", rounds=ROUNDS)
SETTINGS = ReplicaSettings(
    rate=RATE, optimizer=AdamW(weight_decay=0.1), clip_norm=1.0, arrangement=Arrangement(2)
)


@dataclass(frozen=True)
class GoldenRun:
    """Result of fifty rounds."""

    losses: tuple[float, ...]
    """Mean loss per sequence, of each round."""
    weights: tuple[str, ...]
    """SHA-256 of each peer's weights after the last round, in hex."""


def batch(round: int, peer: int, place: int) -> dict[str, Tensor]:
    """A micro-batch that a model can learn: each token's successor is a function of the token."""
    seed = (SEED * 1_000_003 + round) * 1_000 + peer * 10 + place
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(VOCABULARY, (SEQUENCES, 1), generator=generator)]
    for _ in range(TOKENS):
        rows.append((rows[-1] * 5 + 3) % VOCABULARY)
    text = torch.cat(rows, dim=1)
    return {"tokens": text[:, :-1].contiguous(), "targets": text[:, 1:].contiguous()}


def micro_batches_of(round: int, peer: int) -> int:
    """One to three, another peer being the fastest in each round."""
    return 1 + (round + peer) % 3


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names and bytes, in the names' order."""
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        hashed.update(name.encode())
        hashed.update(tensors[name].detach().contiguous().numpy().tobytes())
    return hashed.hexdigest()


def arithmetic() -> str:
    """Names how this machine's PyTorch rounds: a digest of one plain backward of the same model."""
    torch.manual_seed(0)
    model = GPT3(CONFIG)
    initialise(model, SEED)
    model(**batch(0, 0, 0)).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return digest(gradients)[:16]


def average(parts: Sequence[Tensor], sequences: int) -> Tensor:
    """The mean gradient, by the all-reduce that daemons use: every peer has the same bytes."""
    with closing(Swarm(len(parts))) as swarm:
        return swarm.average(parts, scale=1 / sequences)


def play_round(replicas: Sequence[Replica], round: int) -> float:
    """Accumulates, averages and steps; the round's mean loss per sequence."""
    for peer, replica in enumerate(replicas):
        replica.reset_gradients()
        for place in range(micro_batches_of(round, peer)):
            replica.run_pass([batch(round, peer, place)])
    sequences = sum(replica.sequences for replica in replicas)
    loss = sum(replica.loss_sum for replica in replicas) / sequences
    mean = average([replica.gradient_sums() for replica in replicas], sequences)
    for replica in replicas:
        replica.begin_step(mean, gradient_norm(mean), round)
        replica.finish_step()
    return loss


@functools.cache
def program() -> Program:
    return compile_program(GPT3(CONFIG), batch(0, 0, 0))


def run() -> GoldenRun:
    """Trains all fifty rounds, on one thread per tensor operation."""
    device, threads = CpuDevice(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        replicas = [Replica(program(), None, SETTINGS, device, ManualClock()) for _ in range(PEERS)]
        for replica in replicas:
            replica.initialise(functools.partial(initial_value, CONFIG, seed=SEED))
        losses = tuple(play_round(replicas, round) for round in range(1, ROUNDS + 1))
        return GoldenRun(losses, tuple(digest(r.export_parameters()) for r in replicas))
    finally:
        device.close()
        torch.set_num_threads(threads)


def main() -> None:
    done = run()
    record = {"losses": done.losses, "weights": {arithmetic(): done.weights[0]}}
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
