"""Row `all-reduce`: exchanges beside the model of an all-reduce.

In the model a step has a latency, and a byte a time on its line (Patarasu & Yuan, "Bandwidth
optimal all-reduce algorithms", 2009).
"""

import argparse
from collections.abc import Iterator

from atom.swarm.exchange.choice import ASSUMED_LATENCY_S, averages_moved
from benchmarks.papers.result import MEGABYTE, Result, result
from benchmarks.ring.member import ONE_SHOT, Side
from benchmarks.ring.run import Links, measured
from benchmarks.shared.seats import WIRE_SHARE

RING, PARTS = "ring", "parts with owners"
SIDES = {RING: "tls", PARTS: "tls/float32/parts", ONE_SHOT: ONE_SHOT}
GROUPS = (
    *((members, 100.0, 0.0, (0.25, 4.0)) for members in (2, 4, 8)),
    (4, 20.0, 0.02, (0.05, 0.5)),
)
"""Members, Mbit/s of each line, seconds from one to another, megabytes."""


def modelled(side: str, members: int) -> tuple[int, float]:
    """Return a member's successive steps, and the averages that it sends."""
    parts = averages_moved((1,) * members, 0)
    return {RING: (2 * (members - 1), parts), PARTS: (2, parts), ONE_SHOT: (1, members - 1)}[side]


def exchanges(_: argparse.Namespace) -> Iterator[Result]:
    """Measure exchanges without opening connections, which one-shot (over gloo) does once."""
    sides = [Side(side) for side in SIDES.values()]
    names = {side: name for name, side in SIDES.items()}
    for members, mbit, delay_s, sizes in GROUPS:
        links, bytes_per_s = Links((mbit,) * members, delay_s), mbit * 1e6 / 8 * WIRE_SHARE
        for seen in measured(members, sizes, sides, links, runs=3):
            name, megabytes = names[seen["side"]], seen["MB"]
            steps, averages = modelled(name, members)
            seconds, sent = seen["seconds"].median_s - seen["opening_s"], averages * megabytes
            model = steps * (delay_s or ASSUMED_LATENCY_S) + sent * MEGABYTE / bytes_per_s
            yield result(
                f"{members} members, {mbit:.0f} Mbit/s, {1e3 * delay_s:.0f} ms, "
                f"{megabytes:.2f} MB, {name}: s, MB sent",
                f"{seconds:.3f} ({seconds / model:.2f} x), {seen['sent MB']:.2f}; "
                f"opening {seen['opening_s']:.3f}",
                f"{model:.3f}, {sent:.2f} (the model)",
            )  # fmt: skip
