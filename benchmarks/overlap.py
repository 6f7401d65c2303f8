"""What a round's optimizer step costs beside its ring and its passes: how much of it is hidden.

Two peers or more, a process each, run whole rounds: the real ring with TLS (its connections, sums,
norm and digest), then the commit, then the step and the first pass of the next round. *Between*
takes the step first and then makes the pass; *under* begins the step and makes the pass meanwhile,
as a peer does. Both sides in turn, in the same processes.

    hidden  = 1 - (chain - pass) / step          chain: from the commit to the end of the pass
    exposed = (chain - pass) / the smaller of ring and step

What follows the commit is done by one peer after the other, so that each has the machine's cores.
A pass is computed elsewhere: a sub-model's forward takes `--visit-ms`, its backward twice that,
asleep. Loads, gradients and everything else on the host are real. With `--visit-ms 0` the pass is
computed here, by one thread: of two cores one stands for the device, the other is the host's.

    python benchmarks/overlap.py --mbit 1000
    python benchmarks/overlap.py --mbit 400 --layers 24 --model-dim 512 --vocabulary 8192
    python benchmarks/overlap.py --layers 2 --model-dim 64 --runs 2      # on loopback, at toy size

`--mbit` puts each member into a network namespace on a link of that rate, both ways (root).
"""

import argparse
import contextlib
from collections.abc import Iterable

from member_processes import found_by
from overlap_member import BETWEEN, SIDES, UNDER, Job, Sample, member
from ring_links import loopback, shaped
from sides import Timing, machine, positive, publish

from atom.models.gpt3 import GPT3Config
from atom.optim.step import PIECE_ELEMENTS

HEADS = 8


def main() -> None:
    options = _options()
    config = GPT3Config(
        options.layers, HEADS, options.model_dim, options.sequence_tokens, options.vocabulary
    )
    links = shaped(options.members, options.mbit) if options.mbit else None
    with links or contextlib.nullcontext(loopback(options.members)) as seats:
        job = Job(
            tuple(seats), config, options.micro_batches, options.runs, options.visit_ms / 1e3,
            options.piece_elements,
        )  # fmt: skip
        found = found_by(member, job, options.members)
    elements, sub_models, _, digest = found[0]
    assert all(last == digest for _, _, _, last in found), "the members' states differ"
    samples = {side: [s for _, _, of_member, _ in found for s in of_member[side]] for side in SIDES}
    figures = _figures(samples)
    body = {
        "benchmark": "overlap",
        "machine": machine(),
        "members": options.members,
        "mbit": options.mbit,
        "parameters": elements,
        "sub_models": sub_models,
        "visit_ms": options.visit_ms,
        "piece_elements": options.piece_elements,
        **{name: timing.to_json() for name, timing in figures.items()},
        **_shares(figures),
    }
    rows = [
        [name, f"{timing.median_s:.4f}", f"{min(timing.runs_s):.4f}"]
        for name, timing in figures.items()
    ]
    rows += [[name, f"{share:.3f}", ""] for name, share in _shares(figures).items()]
    publish(["overlap", "s, or ratio", "fastest"], rows, body)


def _figures(samples: dict[str, list[Sample]]) -> dict[str, Timing]:
    """Seconds of everything measured, over runs and members."""
    between, under = samples[BETWEEN], samples[UNDER]
    return {
        "ring": _timing(s.ring_s for s in between + under),
        "norm and digest, after the last byte": _timing(s.known_s for s in between + under),
        "digest alone": _timing(s.hashed_s for s in between + under),
        "step": _timing(s.stepped_s for s in between),
        "pass": _timing(s.passed_s - s.stepped_s for s in between),
        "chain, between": _timing(s.passed_s for s in between),
        "chain, under": _timing(s.passed_s for s in under),
        "added, under": _timing(
            u.passed_s - (b.passed_s - b.stepped_s) for b, u in zip(between, under, strict=True)
        ),
        "first forward, between": _timing(s.forward_s for s in between),
        "first forward, alone": _timing(s.forward_s - s.stepped_s for s in between),
        "first forward, under": _timing(s.forward_s for s in under),
        "digest known, between": _timing(s.digest_s for s in between),
        "digest known, under": _timing(s.digest_s for s in under),
    }


def _shares(figures: dict[str, Timing]) -> dict[str, float]:
    """What the chain is longer than the pass, of the step and of the smaller of ring and step."""
    ring, step, added = (figures[name].median_s for name in ("ring", "step", "added, under"))
    return {
        "hidden, under": 1 - added / step,
        "exposed of the smaller, under": added / min(ring, step),
    }


def _timing(seconds: Iterable[float]) -> Timing:
    return Timing(tuple(seconds))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=positive, default=2)
    parser.add_argument("--mbit", type=float, help="shape the links to this rate (root)")
    parser.add_argument("--layers", type=positive, default=12)
    parser.add_argument("--model-dim", type=positive, default=768)
    parser.add_argument("--vocabulary", type=positive, default=50304)
    parser.add_argument("--sequence-tokens", type=positive, default=16)
    parser.add_argument("--micro-batches", type=positive, default=1)
    parser.add_argument("--visit-ms", type=float, default=10.0)
    parser.add_argument("--piece-elements", type=positive, default=PIECE_ELEMENTS)
    parser.add_argument("--runs", type=positive, default=5)
    options = parser.parse_args()
    if options.members < 2:
        parser.error("a ring worth measuring has at least two members")
    return options


if __name__ == "__main__":
    main()
