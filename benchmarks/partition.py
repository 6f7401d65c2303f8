"""How good the planned cuts are, and how long it takes to find them.

Each row is a GPT-3 model on a card that need not be here: seconds come from the card's rates, bytes
from the traced graph. A plan's pass is compared with that of an equal-size cut (the fewest
sub-models of about equal parameters that fit), both timed event by event, with what memory is left
spent in the same way. `--layers` plans a model with so many blocks instead.

    python benchmarks/partition.py
    python benchmarks/partition.py --models 6.7b --cards rtx4090-24g --layers 12 100 400
    python benchmarks/partition.py --models small --cards rtx3060-12g --runs 1
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from sides import machine as this_machine
from sides import positive, publish

from atom.base.errors import DeviceError
from atom.graph.chain import Chain
from atom.graph.profile.seconds import assume_graph
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT2_VOCABULARY, GPT3, GPT3Config
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose
from atom.plan.memory import Cut
from atom.plan.residency import arrangements

MEMORY_BYTES = {"rtx3060-12g": 11 << 30, "rtx4090-24g": 22 << 30, "h200": 138 << 30}
"""What a plan may hold: the card's, less what PyTorch and the driver take."""
MODELS = ("small", "xl", "6.7b", "175b")
MICRO_BATCHES = (1, 8)
"""The most that a pass may accumulate."""
MOST_EQUAL = 256


@dataclass(frozen=True)
class Problem:
    model: str
    card: str
    question: Question


def main() -> None:
    options = _options()
    records = []
    for problem in _problems(options):
        records.append(_record(problem, options.runs))
        sys.stderr.write(".")
    sys.stderr.write("\n")
    titles = ("model", "card", "layers", "most C", "planned", "C", "sub-models", "equal",
              "sub-models", "equal / planned", "planning")  # fmt: skip
    body = {"benchmark": "partition", "machine": this_machine(), "rows": records}
    publish(titles, [_row(record) for record in records], body)


def _record(problem: Problem, runs: int) -> dict[str, Any]:
    """Seconds are of a pass, per micro-batch."""
    planned, planning_s = _planned(problem, runs)
    equal = _equal(problem) if planned else None
    return {
        "model": problem.model,
        "card": problem.card,
        "layers": len(problem.question.layer_ends),
        "most_micro_batches": problem.question.limits.micro_batches,
        "planned": _figures(planned),
        "equal": _figures(equal),
        "planning_s": planning_s,
    }


def _figures(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    return {
        "seconds": choice.seconds_per_micro_batch,
        "micro_batches": choice.micro_batches,
        "sub_models": len(choice.cut.pieces),
    }


def _row(record: dict[str, Any]) -> list[str]:
    planned, equal = record["planned"], record["equal"]
    return [
        record["model"],
        record["card"],
        str(record["layers"]),
        str(record["most_micro_batches"]),
        f"{planned['seconds']:.3f} s" if planned else "does not fit",
        str(planned["micro_batches"]) if planned else "",
        str(planned["sub_models"]) if planned else "",
        f"{equal['seconds']:.3f} s" if equal else "does not fit",
        str(equal["sub_models"]) if equal else "",
        f"{equal['seconds'] / planned['seconds']:.2f}" if equal and planned else "",
        f"{record['planning_s']:.2f} s",
    ]


def _planned(problem: Problem, runs: int) -> tuple[Choice | None, float]:
    """The answer, and the processor seconds of the fastest run."""
    fastest, found = math.inf, None
    for _ in range(runs):
        begin = time.process_time()
        try:
            found = choose(problem.question)
        except DeviceError:
            found = None
        fastest = min(fastest, time.process_time() - begin)
    return found, fastest


def _equal(problem: Problem) -> Choice | None:
    """The fewest sub-models of about equal parameters that fit: cut between layers if that does,
    else anywhere; with the accumulation and the arrangement that are best for them."""
    chain = problem.question.chain
    legal = [p for p in range(1, len(chain.operations)) if p not in chain.forbidden]
    for places in (problem.question.layer_ends[:-1], legal):
        for parts in range(1, min(len(places) + 1, MOST_EQUAL)):
            ends = _even_ends(chain, places, parts)
            timed = [each for n in (1, 2, 4, 8) for each in _arranged(problem, ends, n)]
            if timed:
                return min(timed, key=lambda choice: choice.seconds_per_micro_batch)
    return None


def _arranged(problem: Problem, ends: Sequence[int], micro_batches: int) -> Iterator[Choice]:
    if micro_batches > problem.question.limits.micro_batches:
        return
    asked = problem.question.allowing(micro_batches=micro_batches)
    cut = Cut.of(asked.chain, asked.machine, asked.limits, ends)
    yield from (Choice(cut, arrangement) for arrangement in arrangements(cut))


def _even_ends(chain: Chain, places: Sequence[int], parts: int) -> tuple[int, ...]:
    sizes = (sum(operation.parameters.values()) for operation in chain.operations)
    before = list(accumulate(sizes, initial=0))
    wanted = [before[-1] * k / parts for k in range(1, parts)]
    nearest = {min(places, key=lambda p: abs(before[p] - share)) for share in wanted}
    return (*sorted(nearest), len(chain.operations))


def _problems(options: argparse.Namespace) -> Iterator[Problem]:
    for model in options.models:
        for layers in options.layers:
            for card in options.cards:
                for micro_batches in MICRO_BATCHES:
                    yield _problem(model, card, micro_batches, layers)


def _problem(model: str, card: str, micro_batches: int, layers: int | None) -> Problem:
    graph = _graph(model, layers)
    profile = assume_graph(graph, card)
    most = MEMORY_BYTES[card], micro_batches
    return Problem(model, card, Question.of(graph, profile, *most))


@cache
def _graph(model: str, layers: int | None) -> Graph:
    config = GPT3Config.build(vocabulary_size=GPT2_VOCABULARY, size=model)
    if layers is not None:
        config = replace(config, layers=layers)
    tokens = torch.zeros(1, config.sequence_tokens, dtype=torch.int64)
    module = GPT3(config, device="meta", dtype=torch.bfloat16)
    return trace(module, {"tokens": tokens, "targets": tokens.clone()})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--cards", nargs="+", default=list(MEMORY_BYTES), choices=MEMORY_BYTES)
    parser.add_argument("--layers", nargs="+", type=positive, default=[None])
    parser.add_argument("--runs", type=positive, default=1, help="the fastest counts")
    return parser.parse_args()


if __name__ == "__main__":
    main()
