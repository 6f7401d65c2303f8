"""What a round's optimizer step costs beside its ring and its passes: how much of it is hidden.

Two peers or more, a process each, run whole rounds: the real ring with TLS (its connections, sums,
norm and digest), then the commit, then the step and the first pass of the next round. *Between*
takes the step first and then makes the pass; *under* begins the step and makes the pass meanwhile,
as a peer does. Both sides in turn, in the same processes.

    added   = from the commit to the end of the pass, less what the pass takes after the step
    hidden  = 1 - added / step;  exposed = added / the smaller of ring and step

On a machine that is in use *added* is mostly noise; by how much the first forward is later is not.

What follows the commit is done by one peer after the other, so that each has the machine's cores.
A pass is computed elsewhere: a sub-model's forward takes `--visit-ms`, its backward twice that,
asleep. Loads, gradients and everything else on the host are real. With `--visit-ms 0` the pass is
computed here, by one thread: of two cores one stands for the device, the other is the host's.

    python benchmarks/overlap.py --mbit 1000
    python benchmarks/overlap.py --mbit 400 --layers 12 --model-dim 768 --vocabulary 50304
    python benchmarks/overlap.py --piece-elements 65536 262144 1048576 4194304
    python benchmarks/overlap.py --layers 2 --model-dim 64 --runs 2      # on loopback, at toy size

`--mbit` puts each member into a network namespace on a link of that rate, both ways (root).
"""

import argparse
import contextlib
from typing import Any

from member_processes import found_by
from overlap_member import SIDES, Job, member
from ring_links import loopback, shaped
from sides import Timing, machine, positive, publish

from atom.models.gpt3 import GPT3Config
from atom.optim.optimizer import PIECE_ELEMENTS

HEADS = 8
STEP, ADDED, LATER = "step", "under: added to the pass", "under: first forward later by"
FIGURES = (
    STEP, "pass", "between: step and pass", "under: step and pass", ADDED, LATER,
    "between: digest of the state known", "under: digest of the state known",
)  # fmt: skip
SHARES = ("hidden", "hidden at the first forward", "exposed, of the smaller of ring and step")


def main() -> None:
    options = _options()
    config = GPT3Config(
        options.layers, HEADS, options.model_dim, options.sequence_tokens, options.vocabulary
    )
    links = shaped([options.mbit] * options.members) if options.mbit else None
    with links or contextlib.nullcontext(loopback(options.members)) as seats:
        job = Job(
            tuple(seats), config, options.micro_batches, options.runs, options.visit_ms / 1e3,
            tuple(options.piece_elements),
        )  # fmt: skip
        found = found_by(member, job, options.members)
    _publish(options, found)


def _publish(options: argparse.Namespace, found: list[Any]) -> None:
    elements, sub_models, *_, digest = found[0]
    assert all(last == digest for *_, last in found), "the members' states differ"
    rings = [ring for _, _, of_member, _, _ in found for ring in of_member]
    ring = {
        "ring": Timing(tuple(each.whole_s for each in rings)),
        "norm and digest after the last byte": Timing(tuple(each.known_s for each in rings)),
        "digest alone": Timing(tuple(each.hashed_s for each in rings)),
    }
    pieces = {piece: _figures(found, piece) for piece in options.piece_elements}
    shares = {piece: _shares(ring["ring"], figures) for piece, figures in pieces.items()}
    body = {
        "benchmark": "overlap",
        "machine": machine(),
        "members": options.members,
        "mbit": options.mbit,
        "parameters": elements,
        "sub_models": sub_models,
        "visit_ms": options.visit_ms,
        **{name: timing.to_json() for name, timing in ring.items()},
        "pieces": {
            piece: {**{name: timing.to_json() for name, timing in figures.items()}, **shares[piece]}
            for piece, figures in pieces.items()
        },
    }
    columns = [[*map(_milliseconds, pieces[p].values()), *map(_share, shares[p].values())]
               for p in pieces]  # fmt: skip
    names = [*(f"{name}, ms" for name in FIGURES), *SHARES]
    rows = [[f"{name}, ms", _milliseconds(timing)] for name, timing in ring.items()]
    rows = [[*row, *[""] * (len(pieces) - 1)] for row in rows]
    rows += [[name, *cells] for name, *cells in zip(names, *columns, strict=True)]
    publish(["pieces of, elements", *map(str, pieces)], rows, body)


def _figures(found: list[Any], piece: int) -> dict[str, Timing]:
    """Over runs and members; differences of runs that followed each other."""
    between, under = (
        [sample for *_, samples, _ in found for sample in samples[side, piece]] for side in SIDES
    )
    pairs = list(zip(between, under, strict=True))
    columns = (
        [b.stepped_s for b in between],
        [b.passed_s - b.stepped_s for b in between],
        [b.passed_s for b in between],
        [u.passed_s for u in under],
        [u.passed_s - (b.passed_s - b.stepped_s) for b, u in pairs],
        [u.forward_s - (b.forward_s - b.stepped_s) for b, u in pairs],
        [b.digest_s for b in between],
        [u.digest_s for u in under],
    )
    return {name: Timing(tuple(each)) for name, each in zip(FIGURES, columns, strict=True)}


def _shares(ring: Timing, figures: dict[str, Timing]) -> dict[str, float]:
    """Of the medians."""
    step_s, added_s, later_s = (figures[name].median_s for name in (STEP, ADDED, LATER))
    smaller_s = min(ring.median_s, step_s)
    shares = (1 - added_s / step_s, 1 - later_s / step_s, added_s / smaller_s)
    return dict(zip(SHARES, shares, strict=True))


def _milliseconds(timing: Timing) -> str:
    return f"{1e3 * timing.median_s:.1f}"


def _share(share: float) -> str:
    return f"{share:.3f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=positive, default=2)
    parser.add_argument("--mbit", type=float, help="shape the links to this rate (root)")
    parser.add_argument("--layers", type=positive, default=24)
    parser.add_argument("--model-dim", type=positive, default=512)
    parser.add_argument("--vocabulary", type=positive, default=8192)
    parser.add_argument("--sequence-tokens", type=positive, default=16)
    parser.add_argument("--micro-batches", type=positive, default=1)
    parser.add_argument("--visit-ms", type=float, default=10.0)
    parser.add_argument("--piece-elements", type=positive, nargs="+", default=[PIECE_ELEMENTS])
    parser.add_argument("--runs", type=positive, default=5)
    options = parser.parse_args()
    if options.members < 2:
        parser.error("a ring worth measuring has at least two members")
    return options


if __name__ == "__main__":
    main()
