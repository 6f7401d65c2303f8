"""Process of one member of the compared rings, which runs every side in turn."""

import contextlib
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from atom.config.run_file import CODECS
from atom.optim.gradients import FlatNumbers
from atom.swarm.exchange.choice import part_shares
from atom.swarm.exchange.contribution import Sums
from atom.swarm.state.arenas import state_digest
from atom.swarm.transport.transport import Transport
from benchmarks.shared.exchange import Contact, exchanged, introduce, opened
from benchmarks.shared.members import PATIENCE_S
from benchmarks.shared.seats import Seat

TLS = "tls"
GLOO, ONE_SHOT, HIVEMIND = "gloo", "one-shot", "hivemind"
PARTS, SIZED, ONE_OWNER = "parts", "sized", "one"
TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-2, "int8": 1e-1, "int4": 1.5}


@dataclass(frozen=True)
class Side:
    """Way of averaging: one of Atom's, or another library's."""

    name: str

    def __post_init__(self) -> None:
        if not self.ours and self.name not in (GLOO, ONE_SHOT, HIVEMIND):
            raise ValueError(f"{self.name} is neither tls/codec nor tls/codec/parts")

    @property
    def codec(self) -> str:
        return self._parts[1] if len(self._parts) > 1 else "float32"

    def shares(self, mbit: Sequence[float], undialable: int | None) -> tuple[int, ...]:
        """Return the shares of parts by rank, on lines of these rates; empty: a ring."""
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
        codecs, ways = "|".join(CODECS), "|".join((PARTS, SIZED, ONE_OWNER))
        return bool(re.fullmatch(f"{TLS}(/({codecs})(/({ways}))?)?", self.name))

    @property
    def alike(self) -> bool:
        """True if all members end with the same bytes."""
        return self.name != HIVEMIND


@dataclass(frozen=True)
class Job:
    """Order to every member."""

    seats: tuple[Seat, ...]
    elements: tuple[int, ...]
    runs: int
    sides: tuple[Side, ...]
    rendezvous: str
    """File through which gloo's processes find each other."""
    mbit: tuple[float, ...] = ()
    """Rate of each member's link; empty: not known."""
    undialable: int | None = None
    """Rank of the member without a known address."""

    def shares(self, side: Side) -> tuple[int, ...]:
        return side.shares(self.mbit or (1.0,) * len(self.seats), self.undialable)


@dataclass(frozen=True)
class Sample:
    """Figures of one run of one member; CPU over all threads of the process."""

    seconds: float
    opening_s: float
    cpu_s: float
    sent_bytes: int
    """Bytes by the interface's counter, headers and acknowledgements included."""
    digest: bytes = b""
    """Digest of the mean, on sides where all members have equal bytes."""


Reduce = Callable[[Tensor, int], tuple[FlatNumbers, float]]
"""Function from a member's tensor and the number of the run to the mean of all tensors and the
seconds that opening connections took."""


def member(rank: int, job: Job, gate: Any, parent: Connection) -> None:
    """Main function of a process: send its contacts, then samples [size][side][run]."""
    job.seats[rank].take()
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        sides = _sides(rank, job, parent, stack)
        parent.send([_runs(rank, job, elements, sides, gate) for elements in job.elements])
        gate.wait(PATIENCE_S)


def _sides(
    rank: int, job: Job, parent: Connection, stack: contextlib.ExitStack
) -> dict[Side, Reduce]:
    transport = opened(job.seats[rank].host)
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
            addresses = [contact for contact, _ in contacts]
            found[side] = _ours(side, job, transport, addresses)
    return found


def _ours(side: Side, job: Job, transport: Transport, contacts: Sequence[Contact]) -> Reduce:
    introduce(transport, [each for n, each in enumerate(contacts) if n != job.undialable])
    order = [peer_id for peer_id, _ in contacts]

    def reduce(source: Tensor, run: int) -> tuple[FlatNumbers, float]:
        sums, shares = Sums(source), job.shares(side)
        return exchanged(transport, order, run, sums, source.numel(), side.codec, shares)

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
    """Send all members' numbers to all members; each adds them in the order of ranks."""
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
    """Averager of hivemind."""

    def __init__(self, seat: Seat, stack: contextlib.ExitStack) -> None:
        multiprocessing.set_start_method("fork", force=True)  # hivemind needs forked processes
        import hivemind  # takes seconds, and only this side needs it

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
    """Return the runs of each side; one more before them warms up."""
    source = torch.randn(elements, generator=torch.Generator().manual_seed(rank))
    given, samples = torch.empty(elements), [list[Sample]() for _ in sides]
    reference: Tensor | None = None
    for run in range(-1, job.runs):
        for (side, reduce), taken in zip(sides.items(), samples, strict=True):
            given.copy_(source)
            gate.wait(PATIENCE_S)
            mean, sample = _timed(partial(reduce, given, elements + run), job.seats[rank])
            if run >= 0:
                digest = state_digest({"mean": mean}) if side.alike else b""
                taken.append(replace(sample, digest=digest))
            if reference is None:
                reference = mean.clone()
            _require_near(mean, reference, side)
    return samples


def _timed(reduce: Callable[[], tuple[FlatNumbers, float]], seat: Seat) -> tuple[Tensor, Sample]:
    sent, started, cpu = seat.sent_bytes(), time.perf_counter(), time.process_time()
    mean, opening_s = reduce()
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    return mean[:], Sample(seconds, opening_s, cpu_s, seat.sent_bytes() - sent)


def _require_near(mean: Tensor, reference: Tensor, side: Side) -> None:
    """Raise AssertionError if a mean is wrong."""
    tolerance = TOLERANCE[side.codec] if side.ours else 1e-5
    torch.testing.assert_close(mean, reference, rtol=tolerance, atol=tolerance)
