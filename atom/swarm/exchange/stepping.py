"""An exchange that ends with what its owners made of the means: `docs/decisions/state-in-parts.md`.

Beside the threads of an exchange by parts one more makes it, as soon as everybody has the means
of what it holds (`atom.swarm.exchange.held_plan`). Nothing of this knows what is made.
"""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.allreduce import Channels, halves_of, run_halves
from atom.swarm.exchange.contribution import Contribution
from atom.swarm.exchange.encoded import EncodedMean, MeanWires
from atom.swarm.exchange.halves import Half, OwnPart, PartsReceiver, Sender
from atom.swarm.exchange.held_plan import MADE, ROW, SUMS, HeldPlan
from atom.swarm.exchange.plans import Step
from atom.swarm.exchange.reduction import ExchangeBroken, Reduction, Terms

_BEAT_S = 1.0
"""Between two looks whether the exchange is over."""


class PartsWork(Protocol):
    """What is made of means. Called from one thread, but for `problem_of`: from any."""

    made_bytes: int
    """Of what is made, for each element."""
    whole_bytes: int
    """The same, for who shall hold the part."""
    row_bytes: int

    def averaged(self, means: Mapping[int, EncodedMean]) -> None:
        """Those of all that is held here, to be kept whatever becomes of the exchange. Before all
        else: nobody makes anything before it returns at all members."""

    def sums_bytes(self, part: int) -> int: ...

    def sums_of(self, part: int, mean: EncodedMean) -> bytes:
        """What everybody has to know of a mean before anything is made."""

    def decide(self, sums: bytes) -> None:
        """Those of all parts, in their order. Before anything is made."""

    def make(self, part: int, mean: EncodedMean, whole: bool) -> tuple[Tensor, bytes]:
        """Flat, uint8; and the part's row. `whole`: for somebody who shall hold it, too; then it
        begins with what the others get."""

    def problem_of(
        self, part: int, row: bytes, mean: EncodedMean | None, made: Tensor | None
    ) -> Reason | None:
        """Why what came of a part is refused: its mean, if we hold it, else what was made, whole or
        not."""


@dataclass(frozen=True)
class Made:
    """What a member has in the end."""

    rows: tuple[bytes, ...]
    """Of each part: the same at all members."""
    means: Mapping[int, EncodedMean]
    """Of the parts that it holds."""
    made: Mapping[int, Tensor]
    """Of the parts that it does not hold, or owns: uint8. Whole, where it shall hold them."""


def average_and_make(
    source: Contribution | None,
    work: PartsWork,
    terms: Terms,
    channels: Channels,
    cancelled: threading.Event | None = None,
) -> Made:
    """As `all_reduce`, with a `holding` in the terms. Raises also: ExchangeBroken(HASH_MISMATCH,
    NOT_FINITE) for what an owner made; what `work` raises."""
    stepping = Stepping(terms, source, work)
    maker = Maker(stepping)
    if not channels.right:
        assert len(terms.members) == 1
        stepping.alone()
        stepping.reached(stepping.reduced)
        maker.run()
    else:
        receiver = partial(MakersReceiver, OwnPart(stepping, stepping.plan))
        halves = halves_of(stepping, channels, MakersSender, receiver)
        run_halves(stepping, [*halves, maker], channels, cancelled)
    rows = tuple(stepping.rows[part] for part in range(len(stepping.rows)))
    return Made(rows, stepping.means, stepping.made)


class Stepping(Reduction):
    """What the threads share."""

    plan: HeldPlan

    def __init__(self, terms: Terms, source: Contribution | None, work: PartsWork) -> None:
        """Raises: MemoryError."""
        assert terms.holding is not None
        assert terms.codec.fixed_size, "means stay where they are put together"
        holding, plan = terms.holding, terms.plan(terms.holding.ranges[-1][1])
        assert isinstance(plan, HeldPlan)
        wires = {
            part: MeanWires(plan, terms.codec, [Step(0, True, 0, *each) for each in plan.cut(part)])
            for part in holding.holds[terms.rank]
        }
        super().__init__(terms, source, plan, lambda step: wires[holding.part_of(step.start)])
        self.holding, self.work = holding, work
        self.wires = wires
        """Of the parts that we hold, each apart."""
        self.reduced = plan.made(len(holding.ranges))
        """The number that is there once we have the means of all that we hold."""
        self._averaging = len(terms.neighbours[0])
        self.averaged = threading.Event()
        """Set when `means` are all there, and kept."""
        self.sums = dict[int, bytes]()
        self.rows = dict[int, bytes]()
        self.means = dict[int, EncodedMean]()
        self.made = dict[int, Tensor]()
        self.due = math.inf
        """When work that nobody but us can be late with must be done, on the monotonic clock."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Others wait for us as long as we say that we do: a disk may hang. So we blame ourselves
        after the time of a whole exchange at the pace."""
        self.due = time.monotonic() + self.terms.pace.due_s(4 * self.holding.ranges[-1][1])
        yield
        self.due = math.inf

    def holds(self, rank: int, step: Step) -> bool:
        return self.holding.part_of(step.start) in self.holding.holds[rank]

    def made_bytes(self, rank: int, part: int) -> int:
        """Of what that member gets of a part, for each element."""
        whole = part in self.holding.gets[rank]
        return self.work.whole_bytes if whole else self.work.made_bytes

    def reached(self, number: int) -> None:
        """Whoever needs it may go on."""
        self.finished(Step(number, True, 0, 0, 0))

    def is_reduced(self) -> None:
        """One more peer's contributions are all here, and the means of its own."""
        with self.changed:
            self._averaging -= 1
            last = not self._averaging
        if last:
            self.reached(self.reduced)

    def ours(self, step: Step, receiver: int) -> Tensor:
        """The bytes of what that member gets of what was gathered, or made (uint8)."""
        part = self.holding.part_of(step.start)
        if step.hop == MADE:
            first, each = self.holding.ranges[part][0], self.made_bytes(receiver, part)
            return self.made[part][(step.start - first) * each : (step.stop - first) * each]
        owned = self.holding.owned(self.terms.rank)
        raw = self.rows[part] if step.hop == ROW else b"".join(self.sums[p] for p in owned)
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else _nothing()


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8)


class MakersSender(Sender):
    """Sends what the plan says after the means, too."""

    reduction: Stepping

    def _listen(self) -> None:
        if time.monotonic() >= self.reduction.due:
            raise ExchangeBroken(self.reduction.terms.me, Reason.TOO_SLOW, "at our own work")
        super()._listen()

    def _encoded(self, step: Step) -> Tensor:
        if step.hop:
            return self.reduction.ours(step, self.peer)
        if step.gather and not self.reduction.holds(self.peer, step):
            return _nothing()
        return super()._encoded(step)


class MakersReceiver(PartsReceiver):
    """Takes it."""

    reduction: Stepping

    @cached_property
    def _owned(self) -> list[int]:
        """The parts that who sends owns."""
        return self.reduction.holding.owned(self.peer)

    def take(self, step: Step) -> None:
        reduction = self.reduction
        if not step.hop and (not step.gather or reduction.holds(reduction.terms.rank, step)):
            super().take(step)
            return
        self._awaits_contribution = False
        if step.hop == SUMS:
            reduction.is_reduced()
        came = self._receive(step, self._room(step), exactly=True)
        if step.hop == SUMS:
            self._split(came.numpy().tobytes())
        elif step.hop == ROW:
            self._check(reduction.holding.part_of(step.start), came.numpy().tobytes())
        reduction.received(step)
        reduction.finished(step)

    def _room(self, step: Step) -> Tensor:
        reduction, work = self.reduction, self.reduction.work
        if step.hop == SUMS:
            return torch.empty(sum(map(work.sums_bytes, self._owned)), dtype=torch.uint8)
        if step.hop == ROW:
            return torch.empty(work.row_bytes, dtype=torch.uint8)
        if not step.hop:
            return _nothing()
        part, rank = reduction.holding.part_of(step.start), reduction.terms.rank
        first, end = reduction.holding.ranges[part]
        if part not in reduction.made:
            size = reduction.made_bytes(rank, part) * (end - first)
            reduction.made[part] = torch.empty(size, dtype=torch.uint8)
        return reduction.ours(step, rank)

    def _split(self, sums: bytes) -> None:
        for part in self._owned:
            size = self.reduction.work.sums_bytes(part)
            self.reduction.sums[part], sums = sums[:size], sums[size:]

    def _check(self, part: int, row: bytes) -> None:
        """Raises: ExchangeBroken, PeerRefused."""
        reduction = self.reduction
        if not reduction.averaged.is_set():
            raise PeerRefused(Reason.MALFORMED, "a row before anything can be made")
        mean, made = reduction.means.get(part), reduction.made.get(part)
        problem = reduction.work.problem_of(part, row, mean, made)
        if problem is not None:
            raise ExchangeBroken(self.channel.peer_id, problem, f"what came of part {part}")
        reduction.rows[part] = row


class Maker(Half):
    """Makes something of the parts that are ours, once everybody has its means."""

    reduction: Stepping
    between_frames = False

    def __init__(self, reduction: Stepping) -> None:
        self.reduction = reduction

    def run(self) -> None:
        reduction, work, plan = self.reduction, self.reduction.work, self.reduction.plan
        rank = reduction.terms.rank
        owned = reduction.holding.owned(rank)
        self._wait(reduction.reduced)
        reduction.means = {part: each.encoded() for part, each in reduction.wires.items()}
        with reduction.at_work():
            work.averaged(reduction.means)
            reduction.averaged.set()
            for part in owned:
                reduction.sums[part] = work.sums_of(part, reduction.means[part])
        reduction.reached(plan.through(rank))
        for peer in plan.peers(rank):
            self._wait(plan.through(peer))
        sums = reduction.sums
        work.decide(b"".join(sums[part] for part in range(len(sums))))
        for part in owned:
            mean, whole = reduction.means[part], any(part in g for g in reduction.holding.gets)
            with reduction.at_work():
                reduction.made[part], reduction.rows[part] = work.make(part, mean, whole)
            reduction.reached(plan.made(part))

    def _wait(self, number: int) -> None:
        """Raises: Interrupted."""
        while not self.reduction.wait_for(number, _BEAT_S):
            pass

    def blame(self, reason: Reason, detail: str) -> ExchangeBroken:
        return ExchangeBroken(self.reduction.terms.me, reason, detail)
