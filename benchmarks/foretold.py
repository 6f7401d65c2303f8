"""What share of its compute bound an optimizer step reaches, as a plan foretells it.

The bound is computing alone, every sub-model but the last twice. One box trains alone: a step is
its passes, the first of them under the update of the step before, and the norm of its gradients.
Nothing is run: seconds come from the cards' rates.

    python benchmarks/foretold.py
    python benchmarks/foretold.py --models 6.7b --cards rtx4090-24g --tokens 131072
"""

import argparse
import sys
from dataclasses import dataclass
from functools import cache

import torch
from planned import Planner
from sides import machine as this_machine
from sides import positive, publish

from atom.graph.profile.seconds import Profile, assume_graph
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT2_VOCABULARY, GPT3, GPT3Config
from atom.plan.choice import HostStep

DEVICE_BYTES = {"h200": 138 << 30, "rtx4090-24g": 22 << 30, "rtx3090-24g": 22 << 30}
STEPS = {"h200": HostStep(3.6e9, 30.0)}
"""AdamW with exact states, as measured; on a desktop as fast as its memory."""
DESKTOP = HostStep(2e9, 30.0)
MODELS = ("xl", "2.7b", "6.7b", "13b")
TOKENS = (8192, 32768, 131072, 262144)
MOST_MICRO_BATCHES = 8


@dataclass(frozen=True)
class Row:
    model: str
    card: str
    tokens: int
    bound_s: float
    step_s: float
    micro_batches: int
    """Of a pass."""


def main() -> None:
    options = _options()
    rows = []
    for model in options.models:
        for card in options.cards:
            rows += [_row(model, card, tokens) for tokens in options.tokens]
            sys.stderr.write(".")
    sys.stderr.write("\n")
    titles = ("model", "card", "tokens per step", "C", "bound", "step", "share")
    body = {"benchmark": "foretold", "machine": this_machine(), "rows": [vars(r) for r in rows]}
    publish(titles, [_cells(row) for row in rows], body)


def _cells(row: Row) -> list[str]:
    times = [f"{seconds:.2f} s" for seconds in (row.bound_s, row.step_s)]
    share = f"{row.bound_s / row.step_s:.2f}"
    return [row.model, row.card, f"{row.tokens:,}", str(row.micro_batches), *times, share]


def _row(model: str, card: str, tokens: int) -> Row:
    graph, profile = graph_of(model), profile_of(model, card)
    wanted = tokens // GPT3Config.build(vocabulary_size=GPT2_VOCABULARY, size=model).sequence_tokens
    planner = Planner(graph, torch.device("cuda"), min(wanted, MOST_MICRO_BATCHES))
    choice, step = planner.choose(profile, DEVICE_BYTES[card]), STEPS.get(card, DESKTOP)
    pieces = choice.cut.pieces
    again_s = sum(p.forward_s + p.backward_s for p in pieces) + sum(
        p.forward_s for p in pieces[:-1]
    )
    return Row(
        model, card, tokens, wanted * again_s,
        choice.passes_s(-(-wanted // choice.micro_batches), step, norm=True),
        choice.micro_batches,
    )  # fmt: skip


@cache
def graph_of(model: str) -> Graph:
    config = GPT3Config.build(vocabulary_size=GPT2_VOCABULARY, size=model)
    tokens = torch.zeros(1, config.sequence_tokens, dtype=torch.int64)
    module = GPT3(config, device="meta", dtype=torch.bfloat16)
    return trace(module, {"tokens": tokens, "targets": tokens.clone()})


@cache
def profile_of(model: str, card: str) -> Profile:
    return assume_graph(graph_of(model), card)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--cards", nargs="+", default=list(DEVICE_BYTES), choices=DEVICE_BYTES)
    parser.add_argument("--tokens", nargs="+", type=positive, default=TOKENS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
