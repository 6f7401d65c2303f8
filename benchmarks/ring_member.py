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
from ring_links import Seat
from torch import Tensor

from atom.base.events import EventFan
from atom.config.run_file import CODECS
from atom.optim.gradients import FlatNumbers
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import Sums, Terms, all_reduce, open_exchange
from atom.swarm.exchange.choice import part_shares
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.plans import ring_tag
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import state_digest
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport

RUN, PARENT = bytes(32), bytes(32)
TLS = "tls"
GLOO, ONE_SHOT, HIVEMIND = "gloo", "one-shot", "hivemind"
PARTS, SIZED, ONE_OWNER = "parts", "sized", "one"
CLEAR_PEAK = Path("/proc/self/clear_refs")
LIBC = ctypes.CDLL(None)
TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-2, "int8": 1e-1, "int4": 1.5}


@dataclass(frozen=True)
class Side:
    """What does the averaging: ours in some way, or others."""

    name: str

    @property
    def codec(self) -> str:
        return self._parts[1] if len(self._parts) > 1 else "float32"

    def shares(self, mbit: Sequence[float], undialable: int | None) -> tuple[int, ...]:
        """Of parts, by rank, on lines of these rates; empty: a ring."""
        able = [rank != undialable for rank in range(len(mbit))]
        match self._parts[2:]:
            case [each] if each == PARTS:
                return tuple(map(int, able))
            case [each] if each == SIZED:
                return part_shares(mbit, able)
            case [each] if each == ONE_OWNER:
                return tuple(int(rank == able.index(True)) for rank in range(len(mbit)))
        return ()

    @property
    def _parts(self) -> list[str]:
        return self.name.split("/")

    @property
    def ours(self) -> bool:
        return self.name not in (GLOO, ONE_SHOT, HIVEMIND)

    @property
    def alike(self) -> bool:
        """Whether all members end with the same bytes."""
        return self.name != HIVEMIND

    def check(self) -> None:
        """Raises: ValueError for a name that is no side."""
        if not self.ours:
            return
        tls, codec, *parts = [*self._parts, "float32"] if self.name == TLS else self._parts
        known = parts in ([], [PARTS], [SIZED], [ONE_OWNER])
        if tls != TLS or codec not in CODECS or not known:
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
    mbit: tuple[float, ...] = ()
    """Of each member's link; empty: not known."""
    undialable: int | None = None
    """The rank whose address nobody knows."""

    def shares(self, side: Side) -> tuple[int, ...]:
        return side.shares(self.mbit or (1.0,) * len(self.seats), self.undialable)


@dataclass(frozen=True)
class Sample:
    """One run of one member, seconds; CPU over all threads (and children) of the process."""

    seconds: float
    opening_s: float
    cpu_s: float
    extra_bytes: int
    """How far the process's memory rose above what it had before the run."""
    sent_bytes: int
    """As the interface counts them, headers and acknowledgements included."""
    digest: bytes = b""
    """Of the mean, on sides where all members have the same."""


Reduce = Callable[[Tensor, int], tuple[FlatNumbers, float]]
"""The mean of everybody's tensor, and how many seconds of that went into opening connections; the
number says which run it is."""


def member(rank: int, job: Job, parent: Connection, gate: Any) -> None:
    """A process's whole life. Sends its contacts, then [size][side][run] samples."""
    job.seats[rank].take()
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
    parent.send((contact, swarm.addresses if swarm else []))
    contacts = parent.recv()
    found: dict[Side, Reduce] = {}
    if {GLOO, ONE_SHOT} & {side.name for side in job.sides}:
        join_group(rank, job, stack)
    for side in job.sides:
        if side.name in (GLOO, ONE_SHOT):
            found[side] = _gloo if side.name == GLOO else _one_shot
        elif swarm is not None and side.name == HIVEMIND:
            found[side] = swarm.join(len(job.seats), contacts[0][1], stack)
        else:
            everybody = [contact for contact, _ in contacts]
            found[side] = _ours(rank, side, job, transport, everybody)
    return found


def member_transport(seat: Seat) -> Transport:
    local = Local(Identity.create(), RUN, bytes(16))
    transport = Transport(local, (seat.host, 0), EventFan())
    transport.start()
    return transport


def _ours(
    rank: int,
    side: Side,
    job: Job,
    transport: Transport,
    contacts: Sequence[tuple[str, tuple[str, int]]],
) -> Reduce:
    for other, (peer_id, (host, port)) in enumerate(contacts):
        if other != job.undialable:
            transport.set_addresses(peer_id, [f"{host}:{port}"])
    order = tuple(peer_id for peer_id, _ in contacts)

    def reduce(source: Tensor, run: int) -> tuple[FlatNumbers, float]:
        ballot = Ballot(run, order[0], bytes(16))
        started = time.perf_counter()
        terms = Terms(
            order, rank, ring_tag(PARENT, ballot), 1 / len(order), codec_named(side.codec),
            job.shares(side), PATIENCE_S,
        )  # fmt: skip
        channels = open_exchange(transport, terms, PATIENCE_S)
        opening_s = time.perf_counter() - started
        wires = terms.mean_wires(source.numel())
        all_reduce(Sums(source), wires, terms, channels)
        return wires.numbers, opening_s

    return reduce


def join_group(rank: int, job: Job, stack: contextlib.ExitStack) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = job.seats[rank].interface
    size = len(job.seats)
    dist.init_process_group("gloo", init_method=job.rendezvous, rank=rank, world_size=size)
    stack.callback(dist.destroy_process_group)


def _gloo(source: Tensor, run: int) -> tuple[FlatNumbers, float]:
    dist.all_reduce(source)
    return source.div_(dist.get_world_size()), 0.0


def _one_shot(source: Tensor, run: int) -> tuple[FlatNumbers, float]:
    """Everybody's numbers to everybody; each adds them up in the order of ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    brought = [source if each == rank else torch.empty_like(source) for each in range(size)]
    others = [each for each in range(size) if each != rank]
    under_way = [dist.irecv(brought[each], each) for each in others]
    under_way += [dist.isend(source, each) for each in others]
    for way in under_way:
        assert way is not None
        way.wait()
    total = brought[0].clone()
    for each in brought[1:]:
        total += each
    return total.div_(size), 0.0


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
            seat = job.seats[rank]
            mean = _timed(lambda reduce=reduce, run=run: reduce(given, elements + run), seat, taken)
            if side.alike:
                taken[-1] = replace(taken[-1], digest=state_digest({"mean": mean}))
            if run < 0:
                del taken[:-1]
            elif run == 0:
                taken[:] = [replace(taken[1], extra_bytes=max(each.extra_bytes for each in taken))]
            if reference is None:
                reference = mean.clone()
            _require_near(mean, reference, side)
    return samples


def _timed(
    reduce: Callable[[], tuple[FlatNumbers, float]], seat: Seat, into: list[Sample]
) -> Tensor:
    before = _resident_bytes(peak=False)
    CLEAR_PEAK.write_text("5")
    sent, started, cpu = seat.sent_bytes(), time.perf_counter(), time.process_time()
    mean, opening_s = reduce()
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    sent_bytes = seat.sent_bytes() - sent
    extra_bytes = max(_resident_bytes(peak=True) - before, 0)
    into.append(Sample(seconds, opening_s, cpu_s, extra_bytes, sent_bytes))
    return mean[:]


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
