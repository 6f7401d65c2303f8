"""Cost of Atom's exchanges beside other all-reduces, one process per member.

All sides average the same float32 tensors in the same processes, in turn; a run's time is
the slowest member's. Atom opens its connections for every exchange, inside the clock, verifies the
identity of the other end, checks every chunk and divides by the weight.

    tls[/codec]             Atom's ring; float32, bfloat16, int8 or int4
    tls/codec/parts         parts with owners, of equal size
    tls/codec/sized         parts as `atom.swarm.exchange.choice` sizes them for these links
    tls/codec/one           the first member owns everything: incast at its worst
    gloo                    torch.distributed's ring: plain TCP, connects once and only adds
    one-shot                all members' numbers to all members, over gloo
    hivemind                its averager; the time includes its matchmaking

`--mbit` puts each member into a network namespace on a link of that rate, both ways (root): one
rate for all, or one for each. `--undialable` is the rank of a member without a known address.

    python -m benchmarks.ring.run
    python -m benchmarks.ring.run --members 2 --megabytes 100 --sides gloo tls hivemind
    python -m benchmarks.ring.run --mbit 200 200 100 50 --sides tls tls/float32/parts
    python -m benchmarks.ring.run --members 2 --megabytes 0.1 --runs 1
"""

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.swarm.exchange.plans import ALIGNMENT
from benchmarks.ring.member import GLOO, Job, Sample, Side, member
from benchmarks.shared.members import found_by
from benchmarks.shared.program import Timing, parser_of, publish
from benchmarks.shared.seats import Seat, loopback, shaped

MEGABYTE = 10**6
DEFAULT_SIDES = [Side(name) for name in (GLOO, "tls", "tls/int8")]
COLUMNS = {
    "MB": ".1f", "side": "", "seconds": ".4f", "fastest_s": ".4f", "slowest_s": ".4f",
    "opening_s": ".4f", "x gloo's speed": ".2f", "of the link": ".3f", "CPU ms per MB": ".2f",
    "sent MB": ".1f",
}  # fmt: skip
"""`of the link`: of the least time for the bytes; packet headers leave 0.956."""


def main() -> None:
    options = _options()
    links = Links(tuple(options.mbit), queue_ms=options.queue_ms)
    rows = measured(
        options.members, options.megabytes, options.sides, links, options.runs, options.undialable
    )
    publish("ring", rows, COLUMNS, members=options.members, mbit=options.mbit)


@dataclass(frozen=True)
class Links:
    """Network of a group."""

    mbit: tuple[float, ...] = ()
    """Rate of each member's link, in both directions; empty: loopback."""
    delay_s: float = 0.0
    """Delay from one member to another."""
    queue_ms: float = 50.0
    """Time that a full queue of a link takes."""


def measured(
    members: int,
    megabytes: Sequence[float],
    sides: Sequence[Side],
    links: Links,
    runs: int,
    undialable: int | None = None,
) -> list[dict[str, Any]]:
    """Return a row per size and side.

    Raises:
        AssertionError: members ended with different bytes.
    """
    elements = tuple(_elements(each) for each in megabytes)
    network = shaped(links.mbit, links.queue_ms, links.delay_s) if links.mbit else None
    with tempfile.TemporaryDirectory() as folder, network or contextlib.nullcontext() as seats:
        where: Sequence[Seat] = seats or loopback(members)
        rendezvous = Path(folder, "gloo").as_uri()
        job = Job(tuple(where), elements, runs, tuple(sides), rendezvous, links.mbit, undialable)
        samples = found_by(member, job, members)
    rows = list[dict[str, Any]]()
    for at, size in enumerate(elements):
        of_size = [
            {"MB": size * 4 / MEGABYTE, "side": side.name}
            | _figures([of_member[at][index] for of_member in samples], size, links)
            for index, side in enumerate(sides)
        ]
        for row, baseline in ((r, b) for r in of_size for b in of_size if b["side"] == GLOO):
            row["x gloo's speed"] = _paired(baseline["seconds"], row["seconds"])
        rows += of_size
    return rows


def _figures(of_members: Sequence[Sequence[Sample]], elements: int, links: Links) -> dict[str, Any]:
    """Return the slowest member's time per run, and the mean member's CPU time per megabyte."""
    members, megabytes = len(of_members), elements * 4 / MEGABYTE
    runs = list(zip(*of_members, strict=True))
    assert all(len({sample.digest for sample in run}) == 1 for run in runs)
    seconds = Timing(tuple(max(sample.seconds for sample in run) for run in runs))
    cpu_s = statistics.median(sum(sample.cpu_s for sample in run) / members for run in runs)
    found: dict[str, Any] = {
        "seconds": seconds,
        "fastest_s": min(seconds.runs_s),
        "slowest_s": max(seconds.runs_s),
        "opening_s": statistics.median(max(s.opening_s for s in run) for run in runs),
        "CPU ms per MB": 1e3 * cpu_s / megabytes,
    }
    if links.mbit:
        least_s = 2 * (members - 1) / members * megabytes * 8 / min(links.mbit)
        found["of the link"] = least_s / seconds.median_s
        most_sent = [max(sample.sent_bytes for sample in run) / MEGABYTE for run in runs]
        found["sent MB"] = statistics.median(most_sent)
    return found


def _paired(theirs: Timing, ours: Timing) -> float:
    """Return the median of their seconds over ours, run by run.

    Runs of one number are neighbours in time, so a machine that is busy for a while slows both.
    """
    pairs = zip(theirs.runs_s, ours.runs_s, strict=True)
    return statistics.median(their_s / our_s for their_s, our_s in pairs)


def _elements(megabytes: float) -> int:
    return max(1, round(megabytes * MEGABYTE / 4 / ALIGNMENT)) * ALIGNMENT


def _options() -> argparse.Namespace:
    sides = {"type": Side, "nargs": "+", "default": DEFAULT_SIDES}
    parser = parser_of(
        __doc__,
        members=3,
        megabytes=[1.0, 16.0, 64.0],
        sides=sides,
        mbit={"type": float, "nargs": "+", "default": []},
        queue_ms=50.0,
        undialable={"type": int},
        runs=5,
    )
    options = parser.parse_args()
    if len(options.mbit) > 1:
        options.members = len(options.mbit)
    options.mbit *= options.members if len(options.mbit) == 1 else 1
    if options.members < 2:
        parser.error("an exchange needs at least two members")
    return options


if __name__ == "__main__":
    main()
