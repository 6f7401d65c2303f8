"""A ring beside parts with owners: the same averages, the same processes, the same links, in turn.

Every member is a process in a network namespace of its own, on a link of a given rate in both
directions (root, `ip` and `tc`). A run's time is that of the slowest member; connections are opened
anew for each, inside the clock. All members must end with the same bytes.

    ring          every line carries 2 (N - 1) / N averages
    equal parts   each member owns as much
    sized parts   as large as `atom.swarm.exchange.choice` makes them for these rates
    one owner     the first member owns everything: incast at its worst

    python benchmarks/exchanges.py
    python benchmarks/exchanges.py --cases "4 equal" "4, one throttled" --megabytes 16 --runs 3
"""

import argparse
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from member_processes import PATIENCE_S, found_by
from ring_links import Seat, shaped
from ring_member import member_transport
from sides import Timing, machine, positive, publish, ratio

from atom.config.run_file import CODECS
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import Sums, Terms, all_reduce, open_exchange
from atom.swarm.exchange.choice import part_shares
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.plans import ALIGNMENT, ring_tag
from atom.swarm.state.arenas import state_digest
from atom.swarm.transport.transport import Transport

MEGABYTE = 10**6
PARENT = bytes(32)
RING, EQUAL, SIZED, ONE_OWNER = "ring", "equal parts", "sized parts", "one owner"


@dataclass(frozen=True)
class Case:
    """A group on links of these rates."""

    mbit: tuple[float, ...]
    sides: tuple[str, ...] = (RING, EQUAL)
    undialable: int | None = None
    """The rank whose address nobody knows."""
    queue_ms: float = 50.0


CASES = {
    "2 equal": Case((200,) * 2),
    "4 equal": Case((200,) * 4),
    "8 equal": Case((100,) * 8),
    "4 unequal": Case((200, 200, 100, 50), (RING, EQUAL, SIZED)),
    "4, one throttled": Case((200, 200, 200, 50), (RING, EQUAL, SIZED)),
    "4, one undialable": Case((200,) * 4, (SIZED,), undialable=3),
    "8, incast, short queues": Case((100,) * 8, (RING, EQUAL, ONE_OWNER), queue_ms=5.0),
}


@dataclass(frozen=True)
class Job:
    """What every member is told before it starts."""

    seats: tuple[Seat, ...]
    case: Case
    elements: int
    runs: int
    codec: str

    def shares(self, side: str) -> tuple[int, ...]:
        """Of parts; empty: a ring."""
        members = len(self.case.mbit)
        if side == SIZED:
            able = [rank != self.case.undialable for rank in range(members)]
            return part_shares(self.case.mbit, able)
        equal, one = (1,) * members, (1,) + (0,) * (members - 1)
        return {RING: (), EQUAL: equal, ONE_OWNER: one}[side]


def main() -> None:
    options = _options()
    elements = round(options.megabytes * MEGABYTE / 4 / ALIGNMENT) * ALIGNMENT
    rows, results = [], {}
    for name in options.cases:
        case = CASES[name]
        with shaped(case.mbit, case.queue_ms) as seats:
            job = Job(tuple(seats), case, elements, options.runs, options.codec)
            found = found_by(member, job, len(seats))
        sides = {side: _timing(found, index) for index, side in enumerate(case.sides)}
        results[name] = {
            side: {**timing.to_json(), "shares": job.shares(side)} for side, timing in sides.items()
        }
        rows += [_row(name, side, job, timing, sides.get(RING)) for side, timing in sides.items()]
    titles = ["members", "exchange", "shares", "s (median)", "s (spread)", "x the ring's time"]
    body = {"benchmark": "exchanges", "machine": machine(), "megabytes": options.megabytes}
    publish(titles, rows, {**body, "codec": options.codec, "results": results})


def member(rank: int, job: Job, parent: Connection, gate: Any) -> None:
    """A process's whole life. Sends its contact, then by side its runs' seconds."""
    job.seats[rank].take()
    torch.set_num_threads(1)
    transport = member_transport(job.seats[rank])
    with contextlib.closing(transport):
        parent.send((transport.peer_id, transport.address))
        contacts = parent.recv()
        for other, (peer_id, (host, port)) in enumerate(contacts):
            if other != job.case.undialable:
                transport.set_addresses(peer_id, [f"{host}:{port}"])
        order = tuple(peer_id for peer_id, _ in contacts)
        parent.send([_runs(rank, job, transport, order, side, gate) for side in job.case.sides])
        gate.wait(PATIENCE_S)


def _runs(
    rank: int, job: Job, transport: Transport, order: tuple[str, ...], side: str, gate: Any
) -> list[tuple[float, bytes]]:
    """Seconds and the result's digest of each run; the first, which warms up, is left out."""
    source = torch.randn(job.elements, generator=torch.Generator().manual_seed(rank))
    shares, found = job.shares(side), []
    for _ in range(-1, job.runs):
        ballot = Ballot(1 + len(found), order[0], side.encode().ljust(16)[:16])
        terms = Terms(
            order, rank, ring_tag(PARENT, ballot), 1 / len(order), codec_named(job.codec), shares,
            progress_timeout_s=PATIENCE_S,
        )  # fmt: skip
        gate.wait(PATIENCE_S)
        began = time.perf_counter()
        wires, channels = terms.mean_wires(len(source)), open_exchange(transport, terms, PATIENCE_S)
        all_reduce(Sums(source), wires, terms, channels)
        seconds = time.perf_counter() - began
        found.append((seconds, state_digest(wires.encoded().arenas)))
    return found[1:]


def _timing(found: Sequence[Any], index: int) -> Timing:
    """Per run the slowest member's time. Raises: AssertionError if members end with other bytes."""
    runs = list(zip(*(of_member[index] for of_member in found), strict=True))
    assert all(len({digest for _, digest in run}) == 1 for run in runs)
    return Timing(tuple(max(seconds for seconds, _ in run) for run in runs))


def _row(name: str, side: str, job: Job, timing: Timing, ring: Timing | None) -> list[str]:
    shares = job.shares(side)
    percent = "/".join(str(round(100 * share / sum(shares))) for share in shares)
    spread = f"{min(timing.runs_s):.2f}-{max(timing.runs_s):.2f}"
    against = f"{ratio(timing, ring):.2f}" if ring is not None else ""
    return [name, side, percent, f"{timing.median_s:.2f}", spread, against]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--codec", choices=CODECS, default="float32")
    parser.add_argument("--runs", type=positive, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
