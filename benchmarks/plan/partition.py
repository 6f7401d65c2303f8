"""Quality of the planned cuts, and the time to find them.

Each row is a GPT-3 model on a card that need not be here: seconds come from the rates of the card,
bytes from the traced graph. A plan's pass is compared with the pass of an equal-size cut (fewest
sub-models of about equal parameters that fit), both timed event by event, with the memory that is
left spent in the same way. `--layers` plans a model with so many blocks instead.

    python -m benchmarks.plan.partition
    python -m benchmarks.plan.partition --models 6.7b --cards rtx4090-24g --layers 12 100 400
    python -m benchmarks.plan.partition --models small --cards rtx3060-12g
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from atom.base.errors import DeviceError
from atom.graph.chain import Chain
from atom.plan.choice import Choice
from atom.plan.choosing import Question, choose
from atom.plan.memory import Cut
from atom.plan.residency import arrangements
from benchmarks.shared.planner import graph_of, profile_of
from benchmarks.shared.program import parser_of, positive, publish, say_row

MEMORY_BYTES = {"rtx3060-12g": 11 << 30, "rtx4090-24g": 22 << 30, "h200": 138 << 30}
"""Memory of the card without the share of PyTorch and the driver."""
MODELS = ["small", "xl", "6.7b", "175b"]
MICRO_BATCHES = (1, 8)
"""Most micro-batches that a pass may accumulate."""
MOST_EQUAL = 256
COLUMNS = {
    "model": "", "card": "", "layers": "", "most C": "", "planned s": ".3f", "C": "",
    "sub-models": "", "equal s": ".3f", "equal sub-models": "", "equal / planned": ".2f",
    "planning s": ".2f",
}  # fmt: skip


def main() -> None:
    cards = {"nargs": "+", "default": list(MEMORY_BYTES), "choices": MEMORY_BYTES}
    layers = {"nargs": "+", "type": positive, "default": [None]}
    options = parser_of(__doc__, models=MODELS, cards=cards, layers=layers).parse_args()
    cases = itertools.product(options.models, options.layers, options.cards, MICRO_BATCHES)
    rows = list[dict[str, Any]]()
    for model, count, card, most in cases:
        graph, profile = graph_of(model, count), profile_of(model, card, count)
        asked = Question.of(graph, profile, MEMORY_BYTES[card], most)
        named = {"model": model, "card": card, "layers": len(asked.layer_ends), "most C": most}
        rows.append(named | measured(asked))
        say_row(rows[-1], COLUMNS)
    publish("partition", rows, COLUMNS)


def measured(asked: Question) -> dict[str, Any]:
    """Return seconds of a pass per micro-batch, and processor seconds of planning."""
    began, found = time.process_time(), dict[str, Any]()
    try:
        planned = choose(asked)
    except DeviceError:
        return {"planning s": time.process_time() - began}
    found["planning s"] = time.process_time() - began
    found["planned s"] = planned.seconds_per_micro_batch
    found["C"], found["sub-models"] = planned.micro_batches, len(planned.cut.pieces)
    equal = _equal(asked)
    if equal is not None:
        found["equal s"] = equal.seconds_per_micro_batch
        found["equal sub-models"] = len(equal.cut.pieces)
        found["equal / planned"] = found["equal s"] / found["planned s"]
    return found


def _equal(asked: Question) -> Choice | None:
    """Return the fewest sub-models of about equal parameters that fit.

    Cuts lie between layers if such a cut fits, else anywhere. Accumulation and arrangement are the
    best for the cut.
    """
    chain = asked.chain
    legal = [p for p in range(1, len(chain.operations)) if p not in chain.forbidden]
    for places in (asked.layer_ends[:-1], legal):
        for parts in range(1, min(len(places) + 1, MOST_EQUAL)):
            ends = _even_ends(chain, places, parts)
            timed = [each for n in (1, 2, 4, 8) for each in _arranged(asked, ends, n)]
            if timed:
                return min(timed, key=lambda choice: choice.seconds_per_micro_batch)
    return None


def _arranged(asked: Question, ends: Sequence[int], micro_batches: int) -> Iterator[Choice]:
    if micro_batches > asked.limits.micro_batches:
        return
    allowed = asked.allowing(micro_batches=micro_batches)
    cut = Cut.of(allowed.chain, allowed.machine, allowed.limits, ends)
    yield from (Choice(cut, arrangement) for arrangement in arrangements(cut))


def _even_ends(chain: Chain, places: Sequence[int], parts: int) -> tuple[int, ...]:
    sizes = (sum(operation.parameters.values()) for operation in chain.operations)
    before = list(accumulate(sizes, initial=0))
    wanted = [before[-1] * k / parts for k in range(1, parts)]
    nearest = {min(places, key=lambda p: abs(before[p] - share)) for share in wanted}
    return (*sorted(nearest), len(chain.operations))


if __name__ == "__main__":
    main()
