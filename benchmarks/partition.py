"""How good the partitioner's cuts are, and how long it takes to find them.

Each row is a GPT-3 model on a card that need not be here: seconds come from the card's rates, bytes
from the traced graph. The planned cut is compared with an equal-size cut (the fewest sub-models of
about equal parameters that fit) and, on chains cut only between layers, with the exhaustive search.
`--curve` repeats a model's blocks and plans each length.

    python benchmarks/partition.py
    python benchmarks/partition.py --curve
    python benchmarks/partition.py --models small --cards rtx3060-12g --runs 1
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from sides import machine as this_machine
from sides import positive, publish

from atom.graph.costs.operation_chain import operation_chain
from atom.graph.partition import (
    Chain,
    Machine,
    Partition,
    Terms,
    cost_of,
    find_partition,
    smallest_device_bytes,
)
from atom.graph.profile import assume_graph
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT2_VOCABULARY, GPT3, GPT3Config

MEMORY_BYTES = {"rtx3060-12g": 11 << 30, "rtx4090-24g": 22 << 30, "h200": 138 << 30}
"""What a plan may hold: the card's, less what PyTorch and the driver take."""
MODELS = ("small", "xl", "6.7b", "175b")
MICRO_BATCHES = (1, 4, 16)
MOST_EXHAUSTIVE_CUTS = 17
CURVE_LAYERS = (12, 25, 50, 100, 200, 400, 1000)
CURVE_FROM = 2
"""The exponent is that between this point and the last."""


@dataclass(frozen=True)
class Problem:
    model: str
    card: str
    chain: Chain
    machine: Machine
    terms: Terms


def main() -> None:
    options = _options()
    body: dict[str, Any] = {"benchmark": "partition", "machine": this_machine()}
    if options.curve:
        titles, rows, records = curve(options.runs)
    else:
        titles, rows, records = quality(options.models, options.cards, options.runs)
    publish(titles, rows, {**body, "rows": records})


def quality(models: Sequence[str], cards: Sequence[str], runs: int) -> Any:
    records = []
    for model in models:
        for card in cards:
            for micro_batches in MICRO_BATCHES:
                problem = _problem(model, card, micro_batches)
                records.append(_record(problem, runs))
                sys.stderr.write(".")
    sys.stderr.write("\n")
    titles = ("model", "card", "C", "operations", "planned", "sub-models", "equal", "sub-models",
              "ratio", "solver", "gap", "exhaustive")  # fmt: skip
    return titles, [_row(record) for record in records], records


def _record(problem: Problem, runs: int) -> dict[str, Any]:
    chain, machine, terms = problem.chain, problem.machine, problem.terms
    planned, solver_s = _timed(lambda: find_partition(chain, machine, terms), runs)
    equal = equal_cut(chain, machine, terms)
    record: dict[str, Any] = {
        "model": problem.model,
        "card": problem.card,
        "micro_batches": terms.micro_batches,
        "operations": len(chain.operations),
        "solver_s": solver_s,
        "planned": _figures(planned),
        "equal": _figures(equal),
        "ratio": equal.seconds / planned.seconds if equal and planned else None,
        "exhaustive": _against_exhaustive(problem),
    }
    if planned is None:
        record["smallest_device_bytes"] = smallest_device_bytes(chain, machine, terms)
    return record


def _figures(found: Partition | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "seconds": found.seconds,
        "sub_models": len(found.ends),
        "cut_bytes": found.cut_bytes,
        "device_bytes": found.device_bytes,
        "gap_s": found.gap_s,
    }


def _row(record: dict[str, Any]) -> list[str]:
    planned, equal, both = record["planned"], record["equal"], record["exhaustive"]
    need = record.get("smallest_device_bytes", 0) / 2**30
    return [
        record["model"],
        record["card"],
        str(record["micro_batches"]),
        str(record["operations"]),
        f"{planned['seconds']:.3f} s" if planned else f"needs {need:.1f} GiB",
        str(planned["sub_models"]) if planned else "",
        f"{equal['seconds']:.3f} s" if equal else "does not fit",
        str(equal["sub_models"]) if equal else "",
        f"{record['ratio']:.2f}" if record["ratio"] else "",
        f"{record['solver_s']:.2f} s",
        f"{100 * planned['gap_s'] / planned['seconds']:.3f} %" if planned else "",
        f"{both['exhaustive_s'] / both['dynamic_s']:.0f} x" if both else "",
    ]


def _against_exhaustive(problem: Problem) -> dict[str, Any] | None:
    """Both solvers on the chain cut only between layers, if that is small enough."""
    places = layer_starts(problem.chain)
    if not 1 < len(places) <= MOST_EXHAUSTIVE_CUTS:
        return None
    everywhere = frozenset(range(1, len(problem.chain.operations)))
    chain = replace(problem.chain, forbidden=everywhere - set(places))
    machine, terms = problem.machine, problem.terms
    fast, dynamic_s = _timed(lambda: find_partition(chain, machine, terms), 1)
    full, exhaustive_s = _timed(lambda: find_partition(chain, machine, terms, "exhaustive"), 1)
    if (fast is None) != (full is None):
        raise SystemExit(f"the solvers disagree whether {problem.model} fits")
    if fast and full and not math.isclose(fast.seconds, full.seconds, rel_tol=1e-7):
        raise SystemExit(f"{problem.model}: {fast.seconds} s against {full.seconds} s")
    return {"cuts": len(places), "dynamic_s": dynamic_s, "exhaustive_s": exhaustive_s}


def equal_cut(chain: Chain, machine: Machine, terms: Terms) -> Partition | None:
    """The fewest sub-models of about equal parameters that fit: cut between layers if that does,
    else anywhere."""
    legal = [p for p in range(1, len(chain.operations)) if p not in chain.forbidden]
    for places in (layer_starts(chain), legal):
        for count in range(1, min(len(places) + 1, 256)):
            found = cost_of(chain, machine, terms, _even_ends(chain, places, count))
            if found.device_bytes <= terms.device_bytes:
                return found
    return None


def _even_ends(chain: Chain, places: Sequence[int], count: int) -> tuple[int, ...]:
    before, held = [0], 0
    for operation in chain.operations:
        held += sum(operation.parameters.values())
        before.append(held)
    wanted = [held * k / count for k in range(1, count)]
    nearest = {min(places, key=lambda p: abs(before[p] - share)) for share in wanted}
    return (*sorted(nearest), len(chain.operations))


def layer_starts(chain: Chain) -> list[int]:
    """Positions at which another block, or what follows the blocks, begins."""
    blocks = [_block_of(operation.name) for operation in chain.operations]
    return [
        p for p in range(1, len(blocks)) if blocks[p] != blocks[p - 1] and p not in chain.forbidden
    ]


def _block_of(name: str) -> str:
    parts = name.split(" ")[0].split(".")
    return ".".join(parts[:2]) if parts[0] == "blocks" else "outside"


def curve(runs: int) -> Any:
    """Solver seconds against the number of layers."""
    cases = [
        ("6.7b", "rtx4090-24g", 4, "short spans"),
        ("175b", "h200", 4, "short spans, memory for boundary values to spare"),
        ("175b", "h200", 1, "boundary values compete for memory"),
        ("small", "h200", 2, "long spans: everything fits"),
    ]
    records: list[dict[str, Any]] = []
    for model, card, micro_batches, what in cases:
        problem = _problem(model, card, micro_batches, layers=4)
        points: list[dict[str, Any]] = []
        for layers in CURVE_LAYERS:
            chain = repeated(problem.chain, layers)
            find = _finder(chain, problem.machine, problem.terms)
            found, solver_s = _timed(find, runs)
            points.append({"layers": layers, "solver_s": solver_s, "planned": _figures(found)})
            sys.stderr.write(".")
        first, last = points[CURVE_FROM], points[-1]
        growth = math.log(last["solver_s"] / first["solver_s"])
        exponent = growth / math.log(last["layers"] / first["layers"])
        records.append({"model": model, "card": card, "micro_batches": micro_batches,
                        "case": what, "points": points, "exponent": exponent})  # fmt: skip
    sys.stderr.write("\n")
    titles = ("blocks of", "card", "C", *(f"{n} layers" for n in CURVE_LAYERS), "exponent")
    rows = [
        [r["model"], r["card"], str(r["micro_batches"])]
        + [f"{p['solver_s']:.2f} s" for p in r["points"]]
        + [f"{r['exponent']:.2f}"]
        for r in records
    ]
    return titles, rows, records


def _finder(chain: Chain, machine: Machine, terms: Terms) -> Callable[[], Partition | None]:
    return lambda: find_partition(chain, machine, terms)


def repeated(chain: Chain, layers: int) -> Chain:
    """A model of 4 blocks with its second block repeated until there are `layers`."""
    starts = layer_starts(chain)
    begin, end = starts[1], starts[2]
    period, extra = end - begin, layers - 4
    shift = extra * period
    copies = [
        replace(
            operation,
            parameters={f"{name} copy {k}": size for name, size in operation.parameters.items()},
        )
        for k in range(extra)
        for operation in chain.operations[begin:end]
    ]
    operations = (*chain.operations[:end], *copies, *chain.operations[end:])
    values = []
    for value in chain.values:
        inside = begin <= value.made_by < end
        times = range(extra + 1) if inside else (0,)
        made = value.made_by + (shift if value.made_by >= end else 0)
        beyond = 0 if inside else shift
        for k in times:
            last, *used = (
                u + k * period + (beyond if u >= end else 0)
                for u in (value.last_used_by, *value.used_by)
            )
            made_by = made + k * period
            values.append(replace(value, made_by=made_by, last_used_by=last, used_by=tuple(used)))
    forbidden = {p if p < end else p + shift for p in chain.forbidden}
    inner = [p for p in chain.forbidden if begin < p < end]
    forbidden |= {p + k * period for p in inner for k in range(1, extra + 1)}
    return Chain(operations, tuple(values), frozenset(forbidden))


def _problem(model: str, card: str, micro_batches: int, layers: int | None = None) -> Problem:
    graph = _graph(model, layers)
    profile = assume_graph(graph, card)
    machine = Machine(
        profile.link.load_bytes_per_s.median, profile.link.gradient_bytes_per_s.median
    )
    terms = Terms(MEMORY_BYTES[card], micro_batches, element_bytes=2)
    chain = operation_chain(graph, profile.operations, fused=True)
    return Problem(model, card, chain, machine, terms)


@cache
def _graph(model: str, layers: int | None) -> Graph:
    config = GPT3Config.build(vocabulary_size=GPT2_VOCABULARY, size=model)
    if layers is not None:
        config = replace(config, layers=layers)
    tokens = torch.zeros(1, config.sequence_tokens, dtype=torch.int64)
    module = GPT3(config, device="meta", dtype=torch.bfloat16)
    return trace(module, {"tokens": tokens, "targets": tokens.clone()})


def _timed(solve: Callable[[], Partition | None], runs: int) -> tuple[Partition | None, float]:
    """The answer, and the processor seconds of the fastest run."""
    fastest, found = math.inf, None
    for _ in range(runs):
        begin = time.process_time()
        found = solve()
        fastest = min(fastest, time.process_time() - begin)
    return found, fastest


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--cards", nargs="+", default=list(MEMORY_BYTES), choices=MEMORY_BYTES)
    parser.add_argument("--runs", type=positive, default=1, help="the fastest counts")
    parser.add_argument("--curve", action="store_true", help="solver time against layers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
