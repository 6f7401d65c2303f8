"""What our exchanges cost beside others' all-reduces, one process per member.

All sides average the same float32 tensors in the same processes, in turn; a run's time is that of
the slowest member. Ours opens its connections anew for every exchange, inside the clock, proves who
is at the other end, checks every chunk and divides by the weight.

    tls[/codec]             our ring; float32, bfloat16, int8 or int4
    tls/codec/parts         parts with owners, as large as each other
    tls/codec/sized         as large as `atom.swarm.exchange.choice` makes them for these links
    tls/codec/one           the first member owns everything: incast at its worst
    gloo                    torch.distributed's ring: plain TCP, connects once and only adds
    one-shot                everybody's numbers to everybody, over gloo
    hivemind                its averager; the time includes its matchmaking

    python benchmarks/ring.py
    python benchmarks/ring.py --members 2 --megabytes 100 --sides gloo tls hivemind
    python benchmarks/ring.py --members 2 --megabytes 100 --mbit 100
    python benchmarks/ring.py --mbit 200 200 100 50 --sides tls tls/float32/parts tls/float32/sized

`--mbit` puts each member into a network namespace on a link of that rate, both ways (root): one
rate for all, or one for each. `--delay-ms` makes the ways between them longer.
"""

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
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
    links = Links(tuple(options.mbit or ()), options.delay_ms / 1e3, options.queue_ms)
    found = measured(
        options.members, options.megabytes, options.sides, links, options.runs, options.undialable
    )
    _publish(found, options)


@dataclass(frozen=True)
class Links:
    """Of a group."""

    mbit: tuple[float, ...] = ()
    """Of each member's, in both directions; empty: loopback."""
    delay_s: float = 0.0
    """From one to another."""
    queue_ms: float = 50.0


def measured(
    members: int,
    megabytes: Sequence[float],
    sides: Sequence[Side],
    links: Links,
    runs: int,
    undialable: int | None = None,
) -> list[tuple[float, dict[str, dict[str, Any]]]]:
    """Per size its megabytes and, by side, what was found. Raises: AssertionError if members end
    with other bytes."""
    elements = tuple(_elements(each) for each in megabytes)
    network = shaped(links.mbit, links.queue_ms, links.delay_s) if links.mbit else None
    with tempfile.TemporaryDirectory() as folder, network or contextlib.nullcontext() as seats:
        where: Sequence[Seat] = seats or loopback(members)
        rendezvous = Path(folder, "gloo").as_uri()
        job = Job(tuple(where), elements, runs, tuple(sides), rendezvous, links.mbit, undialable)
        samples = found_by(member, job, members)
    return [
        (
            size * 4 / MEGABYTE,
            {
                side.name: _side([of_member[at][index] for of_member in samples], size, links)
                for index, side in enumerate(job.sides)
            },
        )
        for at, size in enumerate(elements)
    ]


def _publish(
    found: Sequence[tuple[float, dict[str, dict[str, Any]]]], options: argparse.Namespace
) -> None:
    results, rows = [], []
    for megabytes, sides in found:
        baseline = sides.get(GLOO)
        for name, side in sides.items():
            if baseline is not None:
                side["times_gloos_speed"] = _paired(baseline["seconds"], side["seconds"])
            rows.append(_row(megabytes, name, side))
        results.append({"megabytes": megabytes, "sides": {n: _json(f) for n, f in sides.items()}})
    titles = ["MB", "side", "s (median)", "s (spread)", "opening s", "x gloo's speed",
              "of the link", "CPU ms per MB", "extra MB", "sent MB"]  # fmt: skip
    body = {
        "benchmark": "ring",
        "machine": machine(),
        "members": options.members,
        "mbit": options.mbit,
        "delay_ms": options.delay_ms,
        "results": results,
    }
    publish(titles, rows, body)


def _side(of_members: Sequence[Sequence[Sample]], elements: int, links: Links) -> dict[str, Any]:
    """Per run the slowest member's time, and the mean member's CPU time per megabyte."""
    members, megabytes = len(of_members), elements * 4 / MEGABYTE
    runs = list(zip(*of_members, strict=True))
    assert all(len({sample.digest for sample in run}) == 1 for run in runs)
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
    if links.mbit:
        least_s = 2 * (members - 1) / members * megabytes * 8 / min(links.mbit)
        found["of_the_link"] = least_s / seconds.median_s
        most_sent = [max(sample.sent_bytes for sample in run) / MEGABYTE for run in runs]
        found["sent_megabytes"] = statistics.median(most_sent)
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
        f"{found['sent_megabytes']:.1f}" if "sent_megabytes" in found else "",
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
    parser.add_argument("--mbit", type=float, nargs="+", help="rate of the links (root)")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way; with --mbit")
    parser.add_argument("--queue-ms", type=float, default=50.0, help="that a link holds at most")
    parser.add_argument("--undialable", type=int, help="rank whose address nobody knows: no ring")
    parser.add_argument("--runs", type=positive, default=5)
    options = parser.parse_args()
    if options.mbit and len(options.mbit) > 1:
        options.members = len(options.mbit)
    elif options.mbit:
        options.mbit *= options.members
    if options.members < 2:
        parser.error("a ring worth measuring has at least two members")
    if options.delay_ms and not options.mbit:
        parser.error("--delay-ms is for links of a rate: --mbit")
    return options


if __name__ == "__main__":
    main()
