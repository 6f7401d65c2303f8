"""The ring all-reduce: every member ends with the same bytes, or with a named failure.

Two threads per member: one sends to the right, one receives from the left; the caller's thread
watches for cancellation. The source is only read, the result only written, so a broken ring costs
nothing but time. Whoever notices a failure tells both neighbours whom it blames before it hangs
up; a member that merely starves says so in WAITING frames. So the silence of one peer is not
blamed on its innocent successors.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm import chunk_math
from atom.swarm.codec import Codec, Float32
from atom.swarm.frames import Channel, Interrupted, Kind, Patience
from atom.swarm.ring import RingPlan, Step
from atom.swarm.ring_channels import open_ring
from atom.swarm.ring_failure import (
    MAX_BROKEN_BYTES,
    RingBroken,
    hear_broken,
    parse_broken,
    tell_broken,
)

__all__ = ["RingBroken", "all_reduce", "open_ring"]

assert sys.byteorder == "little", "chunks travel in the machine's own byte order"

_STALL_FACTOR = 8
"""A left neighbour that keeps saying WAITING is believed for this many progress timeouts."""
_WATCH_S = 0.05
_GRACE_S = 1.0


def all_reduce(
    source: Tensor | None,
    result: Tensor,
    rank: int,
    members: Sequence[str],
    left: Channel | None,
    right: Channel | None,
    tag: bytes,
    scale: float,
    progress_timeout_s: float = 3.0,
    cancelled: threading.Event | None = None,
    codec: Codec | None = None,
    plan: RingPlan | None = None,
) -> None:
    """result = scale · Σ sources over `members` (peer ids in ring order; ours is at `rank`).

    `source` and `result` are fp32 [elements], contiguous, a multiple of 16 long and distinct; a
    source of None counts as zeros. `left` and `right` come from `open_ring` (None in a ring of
    one) and are closed when this returns or raises; its threads are gone by then. After a
    failure the contents of `result` mean nothing; `source` is never written.

    Raises: RingBroken. TIMEOUT or RING_BROKEN: a neighbour fell silent or hung up. MALFORMED: a
    chunk of the wrong place, hop, attempt or contributors. NOT_FINITE: someone's numbers, and we
    may ourselves be the suspect. SUPERSEDED: `cancelled` was set.
    """
    reduction = _Reduction(
        source=source,
        result=result,
        rank=rank,
        members=tuple(members),
        tag=tag,
        scale=scale,
        progress_timeout_s=progress_timeout_s,
        codec=codec or Float32(),
        plan=plan or RingPlan(result.numel(), len(members)),
    )
    _check_tensors(source, result)
    if left is None or right is None:
        assert len(members) == 1
        reduction.alone()
        return
    try:
        _run(reduction, left, right, cancelled or threading.Event())
    finally:
        left.close()
        right.close()
    if reduction.failure is not None:
        raise reduction.failure


@dataclass
class _Reduction:
    """One member's all-reduce: what both its threads share."""

    source: Tensor | None
    result: Tensor
    rank: int
    members: tuple[str, ...]
    tag: bytes
    scale: float
    progress_timeout_s: float
    codec: Codec
    plan: RingPlan
    stop: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)
    received: int = 0
    failure: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)
    """Set when both threads are through, or one of them failed."""
    working: int = 2

    def __post_init__(self) -> None:
        chunk = self.plan.chunk_elements
        self.zeros = torch.zeros(chunk) if self.source is None else None

    @property
    def me(self) -> str:
        return self.members[self.rank]

    def fail(self, failure: Exception) -> None:
        """Keeps the first failure, unless a neighbour that saw it closer names the culprit."""
        with self.changed:
            told = isinstance(failure, RingBroken) and failure.told and failure.suspect is not None
            known = isinstance(self.failure, RingBroken) and self.failure.told
            if self.failure is None or (told and not known):
                self.failure = failure
            self.stop.set()
            self.over.set()
            self.changed.notify_all()

    def through(self) -> None:
        """One of the two threads has done all its work."""
        with self.changed:
            self.working -= 1
            if self.working == 0:
                self.over.set()

    def arrived(self) -> None:
        """One more chunk is in `result`."""
        with self.changed:
            self.received += 1
            self.changed.notify_all()

    def wait_for(self, count: int, seconds: float) -> bool:
        """Whether `count` chunks have been received; waits. Raises: Interrupted."""
        with self.changed:
            self.changed.wait_for(lambda: self.received >= count or self.stop.is_set(), seconds)
            if self.stop.is_set():
                raise Interrupted("stopped")
            return self.received >= count

    def part(self, step: Step) -> Tensor:
        """Our own addend for the chunk."""
        if self.zeros is not None:
            return self.zeros[: step.stop - step.start]
        assert self.source is not None
        return self.source[step.start : step.stop]

    def scratch(self) -> Tensor:
        return torch.empty(4 * self.plan.chunk_elements, dtype=torch.uint8)

    def finish(self, total: Tensor, scratch: Tensor) -> None:
        """The owner's last touch: mean instead of sum, then what everybody else will decode."""
        chunk_math.scale(total, self.scale, total)
        self.codec.decode(self.codec.encode(total, scratch), total)
        if not chunk_math.is_finite(total):
            raise RingBroken(None, Reason.NOT_FINITE, "the sum overflows")

    def alone(self) -> None:
        """A ring of one: the same arithmetic without a wire. Raises: RingBroken(NOT_FINITE)."""
        scratch, size = self.scratch(), self.plan.chunk_elements
        for start in range(0, self.result.numel(), size):
            total = self.result[start : start + size]
            if self.source is None:
                total.zero_()
                continue
            chunk_math.copy(self.source[start : start + size], total)
            if not chunk_math.is_finite(total):
                raise RingBroken(self.me, Reason.NOT_FINITE, "in our own part")
            self.finish(total, scratch)


def _check_tensors(source: Tensor | None, result: Tensor) -> None:
    for tensor in (result,) if source is None else (source, result):
        assert tensor.dtype is torch.float32
        assert tensor.is_contiguous()
        assert tensor.dim() == 1
        assert tensor.numel() == result.numel()
    assert source is None or source.data_ptr() != result.data_ptr()


def _run(reduction: _Reduction, left: Channel, right: Channel, cancelled: threading.Event) -> None:
    """Runs both threads to their end; gives a failing one a moment for its last words."""
    threads = (
        threading.Thread(target=_send_all, args=(reduction, right), name="atom-ring-send"),
        threading.Thread(target=_receive_all, args=(reduction, left), name="atom-ring-receive"),
    )
    for thread in threads:
        thread.start()
    while not reduction.over.wait(_WATCH_S):
        if cancelled.is_set():
            reduction.fail(RingBroken(None, Reason.SUPERSEDED, "cancelled here"))
    deadline = time.monotonic() + _GRACE_S
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    left.close()
    right.close()  # frees a sender whose neighbour does not read
    for thread in threads:
        thread.join()


def _send_all(reduction: _Reduction, right: Channel) -> None:
    sender = _Sender(reduction, right)
    _guard(reduction, sender.run, sender.blame)
    if reduction.failure is not None and sender.between_frames:
        tell_broken(right, reduction.failure, reduction.me)


def _receive_all(reduction: _Reduction, left: Channel) -> None:
    receiver = _Receiver(reduction, left)
    _guard(reduction, receiver.run, receiver.blame)
    if reduction.failure is not None:
        tell_broken(left, reduction.failure, reduction.me)


def _guard(
    reduction: _Reduction, run: Callable[[], None], blame: Callable[[Reason, str], RingBroken]
) -> None:
    """Turns whatever ends `run` early into the reduction's failure."""
    try:
        run()
        reduction.through()
    except Interrupted:
        pass  # somebody else failed, and said so
    except RingBroken as broken:
        reduction.fail(broken)
    except PeerRefused as refused:
        reduction.fail(blame(refused.reason, refused.detail))
    except TimeoutError as error:
        reduction.fail(blame(Reason.TIMEOUT, str(error)))
    except OSError as error:
        reduction.fail(blame(Reason.RING_BROKEN, str(error)))
    except Exception as error:  # noqa: BLE001 - supervisor: raised again in the caller's thread
        reduction.fail(error)


class _Sender:
    """Sends this member's chunks to the right as soon as what they need has arrived."""

    def __init__(self, reduction: _Reduction, right: Channel) -> None:
        self.between_frames = True
        self._reduction = reduction
        self._right = right
        self._patience = Patience(reduction.progress_timeout_s)
        self._scratch = reduction.scratch()

    def run(self) -> None:
        for step in self._reduction.plan.sends(self._reduction.rank):
            while not self._reduction.wait_for(step.needs, self._patience.silence_s / 4):
                self._listen()
                self._send(Kind.WAITING)
            self._listen()
            chunk = self._reduction.codec.encode(self._values(step), self._scratch)
            header = self._reduction.plan.header(self._reduction.tag, step)
            self._send(Kind.CHUNK, header, chunk.numpy().data)

    def blame(self, reason: Reason, detail: str) -> RingBroken:
        """The right neighbour, unless its last words name another."""
        with contextlib.suppress(OSError, PeerRefused):
            return hear_broken(self._right, self._reduction.members)
        return RingBroken(self._right.peer_id, reason, detail)

    def _values(self, step: Step) -> Tensor:
        if step.gather or step.hop:
            return self._reduction.result[step.start : step.stop]
        part = self._reduction.part(step)
        if not chunk_math.is_finite(part):
            raise RingBroken(self._reduction.me, Reason.NOT_FINITE, "in our own part")
        return part

    def _listen(self) -> None:
        """The right neighbour speaks only to say that it gives up."""
        if not self._right.stream.idle():
            raise hear_broken(self._right, self._reduction.members)

    def _send(self, kind: Kind, *parts: bytes | memoryview) -> None:
        self.between_frames = False
        self._right.send_frame(kind, *parts, patience=self._patience)
        self.between_frames = True


class _Receiver:
    """Takes chunks from the left, adds our part or stores them, and lets the sender know."""

    def __init__(self, reduction: _Reduction, left: Channel) -> None:
        self._reduction = reduction
        self._left = left
        self._scratch = reduction.scratch()
        self._heard_waiting = 0.0
        self._sum = torch.empty(reduction.plan.chunk_elements)

    def run(self) -> None:
        for step in self._reduction.plan.receives(self._reduction.rank):
            out = self._reduction.result[step.start : step.stop]
            if step.gather:
                chunk = self._receive(step, self._reduction.codec.wire(out, self._scratch))
                self._reduction.codec.decode(chunk, out)
            else:
                partial = self._sum[: out.numel()]
                chunk = self._receive(step, self._reduction.codec.wire(partial, self._scratch))
                self._reduction.codec.decode(chunk, partial)
                self._accumulate(step, partial, out)
            self._reduction.arrived()

    def blame(self, reason: Reason, detail: str) -> RingBroken:
        """The left neighbour, unless it told us lately that it is itself waiting."""
        starving = time.monotonic() - self._heard_waiting < self._reduction.progress_timeout_s
        if reason is Reason.TIMEOUT and starving:
            return RingBroken(None, reason, "the whole ring waits")
        return RingBroken(self._left.peer_id, reason, detail)

    def _accumulate(self, step: Step, partial: Tensor, out: Tensor) -> None:
        chunk_math.add(partial, self._reduction.part(step), out)
        if not chunk_math.is_finite(out):
            honest = chunk_math.is_finite(partial)  # then it is our part that is not
            suspect = self._reduction.me if honest else self._left.peer_id
            raise RingBroken(suspect, Reason.NOT_FINITE, f"in elements from {step.start}")
        if step.last_sum:
            self._reduction.finish(out, self._scratch)

    def _receive(self, step: Step, into: Tensor) -> Tensor:
        """Reads the chunk of `step` into `into` (uint8) and returns it."""
        plan, timeout_s = self._reduction.plan, self._reduction.progress_timeout_s
        patience = Patience(
            timeout_s, time.monotonic() + _STALL_FACTOR * timeout_s, self._reduction.stop
        )
        expected = plan.header(self._reduction.tag, step)
        limit = max(len(expected) + into.numel(), MAX_BROKEN_BYTES)
        kind, length = self._left.recv_header(limit, patience)
        while kind == Kind.WAITING and length == 0:
            self._heard_waiting = time.monotonic()
            kind, length = self._left.recv_header(limit, patience)
        if kind == Kind.BROKEN:
            raise parse_broken(self._left.recv_rest(length, patience), self._reduction.members)
        if kind != Kind.CHUNK or length != len(expected) + into.numel():
            raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} of {length} bytes")
        if self._left.recv_rest(len(expected), patience) != expected:
            raise PeerRefused(Reason.MALFORMED, f"not the chunk at {step.start}, hop {step.hop}")
        self._left.recv_into(into.numpy().data, patience)
        return into
