"""Share of its compute bound that an optimizer step reaches, as a plan estimates the step.

The bound is computing alone, all sub-models but the last twice. One machine trains alone: a step is
its passes, the first of them under the update of the step before, and the norm of its gradients.
Nothing is run: seconds come from the rates of the cards.

    python -m benchmarks.plan.bound_share
    python -m benchmarks.plan.bound_share --models 6.7b --cards rtx4090-24g --tokens 131072
"""

import itertools
from typing import Any

import torch

from atom.plan.choice import HostStep
from benchmarks.shared.planner import Planner, gpt3, graph_of, profile_of
from benchmarks.shared.program import parser_of, publish, say_row

DEVICE_BYTES = {"h200": 138 << 30, "rtx4090-24g": 22 << 30, "rtx3090-24g": 22 << 30}
STEPS = {"h200": HostStep(3.6e9, 30.0)}
"""AdamW with exact states, as measured."""
DESKTOP = HostStep(2e9, 30.0)
"""AdamW at the speed of a desktop's memory."""
MODELS = ["xl", "2.7b", "6.7b", "13b"]
TOKENS = [8192, 32768, 131072, 262144]
MOST_MICRO_BATCHES = 8
COLUMNS = {"model": "", "card": "", "tokens": ",", "C": "", "bound_s": ".2f", "step_s": ".2f",
           "share": ".2f"}  # fmt: skip


def main() -> None:
    cards = {"nargs": "+", "default": list(DEVICE_BYTES), "choices": DEVICE_BYTES}
    parser = parser_of(__doc__, models=MODELS, cards=cards, tokens=TOKENS)
    options, rows = parser.parse_args(), list[dict[str, Any]]()
    for case in itertools.product(options.models, options.cards, options.tokens):
        rows.append(measured(*case))
        say_row(rows[-1], COLUMNS)
    publish("bound-share", rows, COLUMNS)


def measured(model: str, card: str, tokens: int) -> dict[str, Any]:
    """Return the bound and the step of one model on one card, in seconds."""
    sequences = tokens // gpt3(model).sequence_tokens
    planner = Planner(graph_of(model), torch.device("cuda"), min(sequences, MOST_MICRO_BATCHES))
    choice = planner.choose(profile_of(model, card), DEVICE_BYTES[card])
    pieces = choice.cut.pieces
    once_s = sum(piece.forward_s + piece.backward_s for piece in pieces)
    bound_s = sequences * (once_s + sum(piece.forward_s for piece in pieces[:-1]))
    passes = -(-sequences // choice.micro_batches)
    step_s = choice.passes_s(passes, STEPS.get(card, DESKTOP), norm=True)
    return {
        "model": model, "card": card, "tokens": tokens, "C": choice.micro_batches,
        "bound_s": bound_s, "step_s": step_s, "share": bound_s / step_s,
    }  # fmt: skip


if __name__ == "__main__":
    main()
