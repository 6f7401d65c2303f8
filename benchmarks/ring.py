"""What our ring all-reduce costs, beside gloo's (and hivemind's averager), one process per member.

All sides average the same float32 tensors in the same processes, in turn; a run's time is that of
the slowest member. Ours opens its connections anew for every ring, inside the clock, proves who is
at the other end, checks every chunk and divides by the weight. gloo (torch.distributed) is plain
TCP, connects once and only adds. hivemind's time includes its matchmaking.

A side of ours is tls[/codec[/parts]]: float32, bfloat16, int8 or int4; with parts: parts with
owners, not a ring. `sockets` only moves the bytes of a ring over bare TCP: as fast as anything
could be there.

    python benchmarks/ring.py
    python benchmarks/ring.py --members 4 --megabytes 100 --sides gloo tls tls/int8 --mbit 400
    python benchmarks/ring.py --members 2 --megabytes 100 --sides gloo tls hivemind
    python benchmarks/ring.py --members 2 --megabytes 100 --sides sockets gloo tls --mbit 100

`--mbit` puts each member into a network namespace on a link of that rate, both ways (root).
`--delay-ms` lets what our sides send arrive later, once they are connected; the others it cannot.
"""

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from member_processes import found_by
from ring_links import WIRE_SHARE, Seat, loopback, shaped
from ring_member import GLOO, Job, Sample, Side, member
from sides import Timing, machine, positive, publish

from atom.swarm.exchange.plans import ALIGNMENT

MEGABYTE = 10**6
DEFAULT_SIDES = [Side(name) for name in (GLOO, "tls", "tls/int8")]


def main() -> None:
    options = _options()
    elements = tuple(_elements(megabytes) for megabytes in options.megabytes)
    links = shaped([options.mbit] * options.members) if options.mbit else None
    with tempfile.TemporaryDirectory() as folder, links or contextlib.nullcontext() as seats:
        rendezvous = Path(folder, "gloo").as_uri()
        where: Sequence[Seat] = seats or loopback(options.members)
        delay_s = options.delay_ms / 1e3
        job = Job(tuple(where), elements, options.runs, tuple(options.sides), rendezvous, delay_s)
        samples = found_by(member, job, options.members)
    _publish(job, samples, options.mbit, options.delay_ms)


def _publish(job: Job, samples: Sequence[Any], mbit: float | None, delay_ms: float) -> None:
    results, rows = [], []
    for size, elements in enumerate(job.elements):
        megabytes, sides = elements * 4 / MEGABYTE, {}
        for index, side in enumerate(job.sides):
            runs = list(zip(*(of_member[size][index] for of_member in samples), strict=True))
            sides[side.name] = _side(runs, megabytes, len(job.seats), mbit)
        baseline = sides.get(GLOO)
        for name, found in sides.items():
            if baseline is not None:
                found["times_gloos_speed"] = _paired(baseline["seconds"], found["seconds"])
            rows.append(_row(megabytes, name, found))
        results.append({"megabytes": megabytes, "sides": {n: _json(f) for n, f in sides.items()}})
    titles = ["MB", "side", "s (median)", "s (spread)", "opening s", "x gloo's speed",
              "of the link", "CPU ms per MB", "extra MB"]  # fmt: skip
    body = {
        "benchmark": "ring",
        "machine": machine(),
        "members": len(job.seats),
        "mbit": mbit,
        "delay_ms": delay_ms,
        "results": results,
    }
    publish(titles, rows, body)


def _side(
    runs: Sequence[Sequence[Sample]], megabytes: float, members: int, mbit: float | None
) -> dict[str, Any]:
    """Per run the slowest member's time, and the mean member's CPU time per megabyte."""
    seconds = Timing(tuple(max(sample.seconds for sample in run) for run in runs))
    cpu = Timing(tuple(sum(sample.cpu_s for sample in run) / members for run in runs))
    opening = Timing(tuple(max(sample.opening_s for sample in run) for run in runs))
    found: dict[str, Any] = {
        "seconds": seconds,
        "opening_s": opening.median_s,
        "cpu_ms_per_mb": 1e3 * cpu.median_s / megabytes,
        "megabytes_per_s": megabytes / seconds.median_s,
        "extra_megabytes": max(sample.extra_bytes for run in runs for sample in run) / MEGABYTE,
    }
    if mbit:
        least_s = 2 * (members - 1) / members * megabytes * 8 / mbit
        found["of_the_link"] = least_s / seconds.median_s
    return found


def _paired(theirs: Timing, ours: Timing) -> float:
    """How many times as fast ours is: the median over the runs, each against its neighbour in time,
    so that a machine that is busy for a while slows both."""
    pairs = zip(theirs.runs_s, ours.runs_s, strict=True)
    return statistics.median(their_s / our_s for their_s, our_s in pairs)


def _row(megabytes: float, name: str, found: dict[str, Any]) -> list[str]:
    seconds = found["seconds"]
    share = f"{found['of_the_link']:.3f} (of {WIRE_SHARE:.3f})" if "of_the_link" in found else ""
    return [
        f"{megabytes:.1f}",
        name,
        f"{seconds.median_s:.4f}",
        f"{min(seconds.runs_s):.4f}-{max(seconds.runs_s):.4f}",
        f"{found['opening_s']:.4f}",
        f"{found['times_gloos_speed']:.2f}" if "times_gloos_speed" in found else "",
        share,
        f"{found['cpu_ms_per_mb']:.2f}",
        f"{found['extra_megabytes']:.1f}",
    ]


def _json(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "seconds": found["seconds"].to_json()}


def _elements(megabytes: float) -> int:
    return max(1, round(megabytes * MEGABYTE / 4 / ALIGNMENT)) * ALIGNMENT


def _side_name(text: str) -> Side:
    side = Side(text)
    side.check()
    return side


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1.0, 16.0, 64.0])
    parser.add_argument("--sides", type=_side_name, nargs="+", default=DEFAULT_SIDES)
    parser.add_argument("--mbit", type=float, help="shape the links to this rate (root)")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way")
    parser.add_argument("--runs", type=positive, default=5)
    options = parser.parse_args()
    if options.members < 2:
        parser.error("a ring worth measuring has at least two members")
    if options.delay_ms and not all(side.ours for side in options.sides):
        parser.error("--delay-ms is for sides of ours")
    return options


if __name__ == "__main__":
    main()
