"""One member of the rings that are compared: a process that runs every side in turn."""

import contextlib
import ctypes
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from member_processes import PATIENCE_S
from ring_delay import delay
from ring_links import Seat
from ring_sockets import BareSockets
from torch import Tensor

from atom.base.events import EventFan
from atom.config.run_file import CODECS
from atom.optim.gradients import FlatNumbers
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import Sums, Terms, all_reduce, open_exchange
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.plans import ring_tag
from atom.swarm.identity import Identity
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport

RUN, PARENT = bytes(32), bytes(32)
TLS = "tls"
GLOO, HIVEMIND, SOCKETS, PARTS = "gloo", "hivemind", "sockets", "parts"
CLEAR_PEAK = Path("/proc/self/clear_refs")
LIBC = ctypes.CDLL(None)
TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-2, "int8": 1e-1, "int4": 1.5}


@dataclass(frozen=True)
class Side:
    """What does the averaging: gloo, hivemind, our ring in some way; or sockets, which do not."""

    name: str

    @property
    def codec(self) -> str:
        return self._parts[1] if len(self._parts) > 1 else "float32"

    @property
    def parts(self) -> bool:
        return self._parts[2:] == [PARTS]

    @property
    def _parts(self) -> list[str]:
        return self.name.split("/")

    @property
    def ours(self) -> bool:
        return self.name not in (GLOO, HIVEMIND, SOCKETS)

    def check(self) -> None:
        """Raises: ValueError for a name that is no side."""
        if not self.ours:
            return
        if (
            self._parts[0] != TLS
            or self.codec not in CODECS
            or self._parts[2:] not in ([], [PARTS])
        ):
            raise ValueError(f"{self.name} is neither tls/codec nor tls/codec/parts")


@dataclass(frozen=True)
class Job:
    """What every member is told before it starts."""

    seats: tuple[Seat, ...]
    elements: tuple[int, ...]
    runs: int
    sides: tuple[Side, ...]
    rendezvous: str
    """A file through which gloo's processes find each other."""
    delay_s: float = 0.0
    """One way, for what our sides send."""


@dataclass(frozen=True)
class Sample:
    """One run of one member, seconds; CPU over all threads (and children) of the process."""

    seconds: float
    opening_s: float
    cpu_s: float
    extra_bytes: int
    """How far the process's memory rose above what it had before the run."""


Reduce = Callable[[Tensor, int], tuple[FlatNumbers, float]]
"""The mean of everybody's tensor, and how many seconds of that went into opening connections; the
number says which run it is."""


def member(rank: int, job: Job, parent: Connection, gate: Any) -> None:
    """A process's whole life. Sends its contacts, then [size][side][run] samples."""
    job.seats[rank].take()
    os.environ["GLOO_SOCKET_IFNAME"] = job.seats[rank].interface
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        sides = _sides(rank, job, parent, stack)
        parent.send([_runs(rank, job, elements, sides, gate) for elements in job.elements])
        gate.wait(PATIENCE_S)


def _sides(
    rank: int, job: Job, parent: Connection, stack: contextlib.ExitStack
) -> dict[Side, Reduce]:
    transport = member_transport(job.seats[rank])
    stack.callback(transport.close)
    contact = (transport.peer_id, transport.address)
    swarm = _Hivemind(job.seats[rank], stack) if Side(HIVEMIND) in job.sides else None
    bare = BareSockets(job.seats[rank], stack) if Side(SOCKETS) in job.sides else None
    parent.send((contact, swarm.addresses if swarm else [], bare.address if bare else None))
    contacts = parent.recv()
    found: dict[Side, Reduce] = {}
    for side in job.sides:
        if side.name == GLOO:
            found[side] = _gloo(rank, job, stack)
        elif swarm is not None and side.name == HIVEMIND:
            found[side] = swarm.join(len(job.seats), contacts[0][1], stack)
        elif bare is not None and side.name == SOCKETS:
            bare.connect(contacts[(rank + 1) % len(contacts)][2], len(contacts))
            found[side] = bare.reduce
        else:
            everybody = [contact for contact, _, _ in contacts]
            found[side] = _ours(rank, side, transport, everybody, job.delay_s)
    return found


def member_transport(seat: Seat) -> Transport:
    local = Local(Identity.create(), RUN, bytes(16))
    transport = Transport(local, (seat.host, 0), EventFan())
    transport.start()
    return transport


def _ours(
    rank: int,
    side: Side,
    transport: Transport,
    contacts: Sequence[tuple[str, tuple[str, int]]],
    delay_s: float,
) -> Reduce:
    for peer_id, (host, port) in contacts:
        transport.set_addresses(peer_id, [f"{host}:{port}"])
    order = tuple(peer_id for peer_id, _ in contacts)

    def reduce(source: Tensor, run: int) -> tuple[FlatNumbers, float]:
        ballot = Ballot(run, order[0], bytes(16))
        started = time.perf_counter()
        terms = Terms(
            order, rank, ring_tag(PARENT, ballot), 1 / len(order), codec_named(side.codec),
            (1,) * len(order) if side.parts else (), PATIENCE_S,
        )  # fmt: skip
        channels = open_exchange(transport, terms, PATIENCE_S)
        opening_s = time.perf_counter() - started
        if delay_s:
            delay(channels, delay_s)
        wires = terms.mean_wires(source.numel())
        all_reduce(Sums(source), wires, terms, channels)
        return wires.numbers, opening_s

    return reduce


def _gloo(rank: int, job: Job, stack: contextlib.ExitStack) -> Reduce:
    size = len(job.seats)
    dist.init_process_group("gloo", init_method=job.rendezvous, rank=rank, world_size=size)
    stack.callback(dist.destroy_process_group)

    def reduce(source: Tensor, run: int) -> tuple[FlatNumbers, float]:
        dist.all_reduce(source)
        return source.div_(size), 0.0

    return reduce


class _Hivemind:
    """hivemind's averager: matchmaking is done before the clock starts."""

    def __init__(self, seat: Seat, stack: contextlib.ExitStack) -> None:
        multiprocessing.set_start_method("fork", force=True)  # its processes are forked, or fail
        import hivemind  # takes seconds, and is not always wanted

        self._hivemind = hivemind
        self._seat = seat
        self._dht = hivemind.DHT(host_maddrs=[f"/ip4/{seat.host}/tcp/0"], start=True)
        stack.callback(self._dht.shutdown)
        self.addresses = [str(address) for address in self._dht.get_visible_maddrs()]

    def join(self, size: int, first: Sequence[str], stack: contextlib.ExitStack) -> Reduce:
        hivemind = self._hivemind
        if list(first) != self.addresses:
            self._dht.shutdown()
            self._dht = hivemind.DHT(
                initial_peers=list(first), host_maddrs=[f"/ip4/{self._seat.host}/tcp/0"], start=True
            )
            stack.callback(self._dht.shutdown)
        averagers: dict[int, Any] = {}

        def reduce(source: Tensor, run: int) -> tuple[FlatNumbers, float]:
            if source.numel() not in averagers:
                averagers[source.numel()] = hivemind.averaging.DecentralizedAverager(
                    [source.clone()], self._dht, start=True, prefix=f"bench{source.numel()}",
                    target_group_size=size, min_group_size=size, min_matchmaking_time=2.0,
                    allreduce_timeout=PATIENCE_S,
                )  # fmt: skip
                stack.callback(averagers[source.numel()].shutdown)
            averager = averagers[source.numel()]
            with averager.get_tensors() as tensors:
                tensors[0].copy_(source)
            assert averager.step(timeout=PATIENCE_S) is not None
            with averager.get_tensors() as tensors:
                return tensors[0].clone(), 0.0

        return reduce


def _runs(
    rank: int, job: Job, elements: int, sides: dict[Side, Reduce], gate: Any
) -> list[list[Sample]]:
    """Per side its runs. The first warms up; the second is for its memory alone: what the first
    has freed is given back before, or it would hide what a ring takes, and cost time."""
    source = torch.randn(elements, generator=torch.Generator().manual_seed(rank))
    given, samples = torch.empty(elements), [list[Sample]() for _ in sides]
    reference: Tensor | None = None
    for run in range(-2, job.runs):
        for (side, reduce), taken in zip(sides.items(), samples, strict=True):
            given.copy_(source)
            if run == -1:
                LIBC.malloc_trim(0)
            gate.wait(PATIENCE_S)
            mean = _timed(lambda reduce=reduce, run=run: reduce(given, elements + run), taken)[:]
            if run < 0:
                del taken[:-1]
            elif run == 0:
                taken[:] = [replace(taken[1], extra_bytes=max(each.extra_bytes for each in taken))]
            if side.name == SOCKETS:
                continue
            if reference is None:
                reference = mean.clone()
            _require_near(mean, reference, side)
    return samples


def _timed(reduce: Callable[[], tuple[FlatNumbers, float]], into: list[Sample]) -> FlatNumbers:
    before = _resident_bytes(peak=False)
    CLEAR_PEAK.write_text("5")
    started, cpu = time.perf_counter(), time.process_time()
    mean, opening_s = reduce()
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    extra_bytes = max(_resident_bytes(peak=True) - before, 0)
    into.append(Sample(seconds, opening_s, cpu_s, extra_bytes))
    return mean


def _resident_bytes(peak: bool) -> int:
    line = "VmHWM:" if peak else "VmRSS:"
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(line)[2].split()[0])


def _require_near(mean: Tensor, reference: Tensor, side: Side) -> None:
    """Fast and wrong would be no result. In parts: a comparison takes several times their memory.

    Raises: AssertionError."""
    tolerance = TOLERANCE[side.codec] if side.ours else 1e-5
    for part, expected in zip(mean.split(1 << 22), reference.split(1 << 22), strict=True):
        torch.testing.assert_close(part, expected, rtol=tolerance, atol=tolerance)
