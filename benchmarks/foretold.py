"""What share of its compute bound an optimizer step reaches, as a plan foretells it: now, and were
gradients added as they used to be.

The bound is computing alone, every sub-model but the last twice. One box trains alone: a step is
its passes, the first of them under the update of the step before, and the norm of its gradients.
*Before*: one thread copied gradients and added them, one after the other; a pass ended when the
last had been added; and the planner did not know of additions. Nothing is run: seconds come from
the cards' rates.

    python benchmarks/foretold.py
    python benchmarks/foretold.py --models 6.7b --cards rtx4090-24g --tokens 131072
"""

import argparse
import sys
from dataclasses import dataclass, replace
from functools import cache

import torch
from planned import Planner
from sides import machine as this_machine
from sides import positive, publish

from atom.graph.chain import Machine
from atom.graph.profile.seconds import Profile, assume_graph
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT2_VOCABULARY, GPT3, GPT3Config
from atom.placement.choice import Choice, HostStep
from atom.swap.schedule import training_pass
from atom.swap.timeline import Durations, landed_s

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
    before_s: float
    after_s: float
    micro_batches: int
    """Of a pass, now."""


def main() -> None:
    options = _options()
    rows = []
    for model in options.models:
        for card in options.cards:
            rows += [_row(model, card, tokens) for tokens in options.tokens]
            sys.stderr.write(".")
    sys.stderr.write("\n")
    titles = ("model", "card", "tokens per step", "C", "bound", "before", "after", "share before",
              "share after")  # fmt: skip
    body = {"benchmark": "foretold", "machine": this_machine(), "rows": [vars(r) for r in rows]}
    publish(titles, [_cells(row) for row in rows], body)


def _cells(row: Row) -> list[str]:
    times = [f"{seconds:.2f} s" for seconds in (row.bound_s, row.before_s, row.after_s)]
    shares = [f"{row.bound_s / seconds:.2f}" for seconds in (row.before_s, row.after_s)]
    return [row.model, row.card, f"{row.tokens:,}", str(row.micro_batches), *times, *shares]


def _row(model: str, card: str, tokens: int) -> Row:
    graph, profile = graph_of(model), profile_of(model, card)
    wanted = tokens // GPT3Config.build(vocabulary_size=GPT2_VOCABULARY, size=model).sequence_tokens
    planner = Planner(graph, torch.device("cuda"), min(wanted, MOST_MICRO_BATCHES))
    link, most = profile.link, DEVICE_BYTES[card]
    unknowing = Machine(link.load_bytes_per_s, link.gradient_bytes_per_s)
    old = planner.choose(replace(profile, link=unknowing), most)
    old, new = planner.again(profile, old), planner.choose(profile, most)
    step, elements = STEPS.get(card, DESKTOP), graph.layout.total_elements
    pieces = new.cut.pieces
    again_s = sum(p.forward_s + p.backward_s for p in pieces) + sum(
        p.forward_s for p in pieces[:-1]
    )
    return Row(
        model, card, tokens, wanted * again_s,
        _before_s(old, wanted, step) + new.norm_s(elements),
        new.passes_s(-(-wanted // new.micro_batches), step, norm=True),
        new.micro_batches,
    )  # fmt: skip


def _before_s(choice: Choice, micro_batches: int, step: HostStep) -> float:
    durations = choice.under_step(step)
    first_s = landed_s([training_pass(choice.shape)], choice.shape, durations)
    passes = training_pass(choice.shape, choice.still_loaded)
    later_s = landed_s([passes], choice.shape, _serial(choice.cut.durations))
    return first_s + later_s * (-(-micro_batches // choice.micro_batches) - 1)


def _serial(durations: Durations) -> Durations:
    both = zip(durations.gradient_out_s, durations.sum_s, strict=True)
    return replace(durations, gradient_out_s=tuple(map(sum, both)), sum_s=())


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
