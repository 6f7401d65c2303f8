"""What our ring all-reduce costs, beside gloo's, over loopback, one process per member.

Both sides average the same float32 tensors in the same processes, in turn; a run's time is that of
the slowest member. Ours travels over TLS between proven identities, checks every chunk and
divides by the weight; gloo (torch.distributed) is plain TCP and only adds. Opening our ring (two
TLS handshakes per member) is measured apart; gloo connects once, before the first run.

    python benchmarks/ring.py
    python benchmarks/ring.py --members 4 --megabytes 4 64 256 --codec bfloat16
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sides import Timing, machine, publish, ratio
from torch import Tensor

from atom.base.events import EventList
from atom.swarm.allreduce import Arenas, RingTerms, all_reduce, open_ring
from atom.swarm.chain import Ballot
from atom.swarm.codec import CODECS
from atom.swarm.identity import Identity
from atom.swarm.protection import RingProtection
from atom.swarm.ring import ALIGNMENT, ring_tag
from atom.swarm.transport import Transport

RUN, PARENT = bytes(32), bytes(32)
PATIENCE_S = 60.0
MEGABYTE = 10**6


@dataclass(frozen=True)
class Job:
    """What every member is told before it starts."""

    members: int
    elements: tuple[int, ...]
    runs: int
    codec: str
    protection: str
    connections: int
    rendezvous: str
    """A file through which gloo's processes find each other."""


@dataclass(frozen=True)
class Sample:
    """One run of one member, seconds; `cpu_s` sums over the process's threads."""

    open_s: float
    ours_s: float
    ours_cpu_s: float
    gloo_s: float
    gloo_cpu_s: float


def main() -> None:
    options = _options()
    elements = tuple(_elements(megabytes) for megabytes in options.megabytes)
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = Path(folder, "gloo").as_uri()
        job = Job(
            options.members,
            elements,
            options.runs,
            options.codec,
            options.protection,
            options.connections,
            rendezvous,
        )
        samples = _measure(job)
    _publish(job, samples)


def _measure(job: Job) -> list[list[list[Sample]]]:
    """[member][size][run]. Raises: RuntimeError if a member ends early."""
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(job.members)
    pipes = [context.Pipe() for _ in range(job.members)]
    processes = [
        context.Process(target=_member, args=(rank, job, child, gate), daemon=True)
        for rank, (_, child) in enumerate(pipes)
    ]
    for process, (_, child) in zip(processes, pipes, strict=True):
        process.start()
        child.close()
    try:
        contacts = [parent.recv() for parent, _ in pipes]
        for parent, _ in pipes:
            parent.send(contacts)
        return [parent.recv() for parent, _ in pipes]
    except EOFError:
        raise RuntimeError("a member of the ring ended early") from None
    finally:
        for process in processes:
            process.join(PATIENCE_S)


def _member(rank: int, job: Job, parent: Connection, gate: Any) -> None:
    """One process: both its rings, all sizes, all runs."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    transport = Transport(
        Identity.create(), RUN, bytes(16), ("127.0.0.1", 0), EventList(),
        ring_protection=RingProtection(job.protection),
    )  # fmt: skip
    transport.start()
    try:
        parent.send((transport.peer_id, transport.address))
        contacts = parent.recv()
        for peer_id, (host, port) in contacts:
            transport.set_addresses(peer_id, [f"{host}:{port}"])
        dist.init_process_group(
            "gloo", init_method=job.rendezvous, rank=rank, world_size=job.members
        )
        order = tuple(peer_id for peer_id, _ in contacts)
        parent.send(
            [_runs(rank, job, elements, transport, order, gate) for elements in job.elements]
        )
        gate.wait(PATIENCE_S)
        dist.destroy_process_group()
    finally:
        transport.close()


def _runs(
    rank: int, job: Job, elements: int, transport: Transport, order: Sequence[str], gate: Any
) -> list[Sample]:
    """The first run warms up and is dropped."""
    generator = torch.Generator().manual_seed(rank)
    source = torch.randn(elements, generator=generator)
    result, summed = torch.zeros(elements), torch.zeros(elements)
    samples = []
    for run in range(job.runs + 1):
        gate.wait(PATIENCE_S)
        ballot = Ballot(elements + run, order[0], bytes(16))
        started = time.perf_counter()
        channels = open_ring(transport, order, PARENT, ballot, PATIENCE_S, job.connections)
        open_s = time.perf_counter() - started
        gate.wait(PATIENCE_S)
        started, cpu = time.perf_counter(), time.process_time()
        terms = RingTerms(
            tuple(order), rank, ring_tag(PARENT, ballot), 1 / job.members, CODECS[job.codec],
            PATIENCE_S,
        )  # fmt: skip
        all_reduce(Arenas(source, result), terms, channels)
        ours_s, ours_cpu_s = time.perf_counter() - started, time.process_time() - cpu
        summed.copy_(source)
        gate.wait(PATIENCE_S)
        started, cpu = time.perf_counter(), time.process_time()
        dist.all_reduce(summed)
        gloo_s, gloo_cpu_s = time.perf_counter() - started, time.process_time() - cpu
        if run:
            samples.append(Sample(open_s, ours_s, ours_cpu_s, gloo_s, gloo_cpu_s))
    _require_equal(result, summed / job.members, job.codec)
    return samples


def _require_equal(ours: Tensor, theirs: Tensor, codec: str) -> None:
    """Fast and wrong would be no result. Raises: AssertionError."""
    tolerance = 1e-5 if codec == "float32" else 5e-2
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def _publish(job: Job, samples: Sequence[Sequence[Sequence[Sample]]]) -> None:
    results = [
        _result(job, elements, [member[index] for member in samples])
        for index, elements in enumerate(job.elements)
    ]
    rows = [
        [f"{r['megabytes']:.1f}", f"{r['ours']['median_s']:.4f}", f"{r['gloo']['median_s']:.4f}",
         f"{r['ratio']:.2f}", f"{r['cpu_ratio']:.2f}", f"{r['open']['median_s']:.4f}"]
        for r in results
    ]  # fmt: skip
    titles = ["MB", "ours s (median)", "gloo s", "ratio", "CPU ratio", "open s"]
    body = {
        "benchmark": "ring",
        "machine": machine(),
        "members": job.members,
        "codec": job.codec,
        "protection": job.protection,
        "connections": job.connections,
        "results": results,
    }
    publish(titles, rows, body)


def _result(job: Job, elements: int, members: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    """Per run the slowest member's time, and the CPU time of all together."""
    runs = list(zip(*members, strict=True))
    ours = Timing(tuple(max(sample.ours_s for sample in run) for run in runs))
    gloo = Timing(tuple(max(sample.gloo_s for sample in run) for run in runs))
    ours_cpu = Timing(tuple(sum(sample.ours_cpu_s for sample in run) for run in runs))
    gloo_cpu = Timing(tuple(sum(sample.gloo_cpu_s for sample in run) for run in runs))
    megabytes = elements * 4 / MEGABYTE
    return {
        "megabytes": megabytes,
        "ours": ours.to_json(),
        "gloo": gloo.to_json(),
        "ratio": ratio(ours, gloo),
        "ours_cpu": ours_cpu.to_json(),
        "gloo_cpu": gloo_cpu.to_json(),
        "cpu_ratio": ratio(ours_cpu, gloo_cpu),
        "open": Timing(tuple(max(sample.open_s for sample in run) for run in runs)).to_json(),
        "megabytes_per_s": {
            "ours": megabytes / ours.median_s,
            "gloo": megabytes / gloo.median_s,
        },
    }


def _elements(megabytes: float) -> int:
    return max(1, round(megabytes * MEGABYTE / 4 / ALIGNMENT)) * ALIGNMENT


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1.0, 16.0, 64.0])
    parser.add_argument("--codec", choices=CODECS, default="float32", help="of our ring")
    parser.add_argument("--protection", choices=[*RingProtection], default="tls")
    parser.add_argument("--connections", type=int, default=1, help="to each neighbour")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    if options.members < 2:
        parser.error("a ring worth measuring has at least two members")
    return options


if __name__ == "__main__":
    main()
