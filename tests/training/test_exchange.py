"""Exchanges of one ballot: equal results on every member, and no reading after a stop."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atom.base.clock import BootClock
from atom.base.errors import Reason
from atom.optim.clipping import gradient_norm
from atom.swarm.chain.commit import Ballot, MemberCount
from atom.swarm.exchange.choice import HANDSHAKES_S
from atom.swarm.exchange.codec import Codec, codec_named
from atom.swarm.exchange.contribution import Contribution, Sums
from atom.swarm.exchange.encoded import MeanNumbers
from atom.swarm.exchange.reduction import ExchangeBroken
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import state_digest
from atom.swarm.stream.frames import Channel, Pace
from atom.training import exchange
from atom.training.exchange import (
    INTRODUCTION_S,
    OPEN_S,
    Exchange,
    introductions,
    opening_s,
    silence_s,
)
from atom.training.round.events import ExchangeFailed, ExchangeFinished, StartExchange
from atom.training.storage.results import Results
from tests.event_list import EventList
from tests.swarm.local_transport import LocalNetwork, LocalTransport

PARENT, ELEMENTS = b"p" * 32, 256
WAIT_S = 20.0


class Doorway(LocalTransport):
    """Lets an exchange's opening wait until `let_in` is set."""

    def __init__(self, network: LocalNetwork, number: int) -> None:
        super().__init__(network, Identity.create(), bytes([number]) * 16, EventList())
        self.opening, self.let_in = threading.Event(), threading.Event()
        self.let_in.set()

    def accept_ring(self, peer_id: str, tag: bytes, timeout_s: float) -> Channel:
        self.opening.set()
        assert self.let_in.wait(WAIT_S)
        return super().accept_ring(peer_id, tag, timeout_s)


class Member:
    """Member number n, whose gradients are 10^n, record when they are read, and may be blocked."""

    def __init__(self, network: LocalNetwork, number: int, folder: Path, codec: Codec) -> None:
        self.door = Doorway(network, number)
        self.door.start()
        self.gradients = torch.full((ELEMENTS,), 10.0**number)
        self.results = Results(folder / str(number), ELEMENTS, codec)
        self.lost = torch.empty(ELEMENTS) if codec.given_back else None
        self.reads = 0
        self.gave_to: tuple[bytes, Ballot] | None = None
        self.reading, self.may_read = threading.Event(), threading.Event()
        self.may_read.set()
        self.fault: Exception | None = None
        self.outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.exchange = Exchange(
            self.door, self.results, self._read, self.outcomes.put, BootClock()
        )

    def _read(self, parent: bytes, ballot: Ballot) -> Contribution:
        self.reads += 1
        self.gave_to = parent, ballot
        self.reading.set()
        assert self.may_read.wait(WAIT_S)
        if self.fault is not None:
            raise self.fault
        return Sums(self.gradients, self.lost)

    def finished(self) -> ExchangeFinished:
        outcome = self.outcomes.get(timeout=WAIT_S)
        assert isinstance(outcome, ExchangeFinished), outcome
        return outcome

    def failed(self) -> ExchangeFailed:
        outcome = self.outcomes.get(timeout=WAIT_S)
        assert isinstance(outcome, ExchangeFailed), outcome
        return outcome

    def result(self, digest: bytes) -> Tensor:
        """Return the result, decoded as any peer decodes it."""
        held = self.results.get(digest)
        assert held is not None
        assert state_digest(held.arenas) == digest
        return held.numbers(self.results.codec, ELEMENTS)[:]


class Circle:
    """Some members on one network."""

    def __init__(self, size: int, folder: Path, codec: Codec) -> None:
        network = LocalNetwork()
        self.members = [Member(network, number, folder, codec) for number in range(size)]

    def start(
        self, *sequences: int, attempt: int = 1, shares: tuple[int, ...] = (), who: slice = slice(9)
    ) -> None:
        pairs = zip(self.members, sequences, strict=True)
        parts = tuple(MemberCount(each.door.peer_id, bytes(16), n, 1.0) for each, n in pairs)
        for member in self.members[who]:
            member.exchange.start(StartExchange(PARENT, ballot(attempt), parts, shares))

    def averaged(self, *sequences: int, attempt: int = 1) -> bytes:
        """The digest that all end with."""
        self.start(*sequences, attempt=attempt)
        (digest,) = {member.finished().digest for member in self.members}
        return digest

    def close(self) -> None:
        for member in self.members:
            member.door.let_in.set()
            member.may_read.set()
        for member in self.members:
            member.exchange.stop()
            member.door.close()
        join(rings())


def ballot(attempt: int = 1) -> Ballot:
    return Ballot(attempt, "the coordinator", bytes(16))


def rings() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ring"]


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


CircleOf = Callable[..., Circle]


@pytest.fixture
def circle_of(tmp_path: Path) -> Iterator[CircleOf]:
    made: list[Circle] = []

    def make(size: int, codec: str = "float32") -> Circle:
        made.append(Circle(size, tmp_path / str(len(made)), codec_named(codec)))
        return made[-1]

    before = set(threading.enumerate())
    yield make
    for circle in made:
        circle.close()
    assert set(threading.enumerate()) <= before


# ---- results


@pytest.mark.parametrize(
    ("sequences", "shares"),
    [((4,), ()), ((3, 5), ()), ((2, 4, 2), ()), ((2, 4, 2), (1, 1, 1)), ((1, 0, 3), ())],
    ids=["alone", "two", "three", "by parts", "one without sequences"],
)
def test_all_members_hold_the_same_mean(
    circle_of: CircleOf, sequences: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    circle = circle_of(len(sequences))
    for member, count in zip(circle.members, sequences, strict=True):
        if not count:
            member.gradients.fill_(float("nan"))  # whatever lies there is not its part
    kept = [member.gradients.clone() for member in circle.members]
    circle.start(*sequences, shares=shares)
    outcomes = [member.finished() for member in circle.members]
    assert len(set(outcomes)) == 1, "all members have the same digest and norm"
    total = sum(10.0**number for number, count in enumerate(sequences) if count)
    mean = torch.full((ELEMENTS,), total / sum(sequences))
    for member, count, before in zip(circle.members, sequences, kept, strict=True):
        assert torch.equal(member.result(outcomes[0].digest), mean)
        assert member.exchange.seconds.keys() == {outcomes[0].digest}
        measured = len(member.exchange.speeds.links(9))
        assert measured == min(len(sequences) - 1, 2 if shares else 1), "lines that it sent on"
        assert torch.equal(member.gradients.nan_to_num(), before.nan_to_num())
        assert bool(member.reads) == bool(count)
    assert outcomes[0].ballot == ballot()
    assert outcomes[0].norm == pytest.approx(total / sum(sequences) * ELEMENTS**0.5)


def test_the_norm_is_of_the_mean_however_late_it_is_summed(
    circle_of: CircleOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that are shorter than their rooms move together in the end: not before it was read."""
    read = MeanNumbers.__getitem__

    def late(numbers: MeanNumbers, elements: slice) -> Tensor:
        time.sleep(0.2)  # this is the lateness
        return read(numbers, elements)

    monkeypatch.setattr(MeanNumbers, "__getitem__", late)
    circle = coarse(circle_of, 3, "sparse")
    circle.start(1, 1, 1, shares=(1, 1, 1))
    (outcome,) = {member.finished() for member in circle.members}
    assert outcome.norm == gradient_norm(circle.members[0].result(outcome.digest))


# ---- error feedback


def coarse(circle_of: CircleOf, size: int, codec: str = "int8") -> Circle:
    circle = circle_of(size, codec)
    for number, member in enumerate(circle.members):
        generator = torch.Generator().manual_seed(number)
        member.gradients.copy_(torch.randn(ELEMENTS, generator=generator))
    return circle


def test_what_is_lacking_is_of_the_latest_exchange_that_something_was_given_to(
    circle_of: CircleOf,
) -> None:
    """However it ended here: the others may have a mean with all of it."""
    circle = coarse(circle_of, 2)
    one, two = circle.members
    assert one.gave_to is None
    circle.averaged(1, 1)
    circle.averaged(1, 0, attempt=2)
    assert one.gave_to == (PARENT, ballot(2))
    assert two.gave_to == (PARENT, ballot(1))
    two.fault = RuntimeError("in the middle")
    circle.start(1, 1, attempt=3)
    one.failed()
    two.failed()
    assert one.gave_to == two.gave_to == (PARENT, ballot(3))


# ---- stopping


def test_stopped_while_opening_it_never_reads(circle_of: CircleOf) -> None:
    circle = circle_of(2)
    stopped, other = circle.members
    door = stopped.door
    door.let_in.clear()
    circle.start(1, 1, who=slice(1))
    assert door.opening.wait(WAIT_S)
    opening = rings()
    stopped.exchange.stop()
    assert [thread.is_alive() for thread in opening] == [True], "no caller waited for the opening"
    circle.start(1, 1, who=slice(1, 2))
    door.let_in.set()
    other.failed()  # the connections came up, and were dropped again
    join(opening)
    assert stopped.reads == 0
    assert stopped.outcomes.empty(), "whoever stopped it does not hear of it again"
    circle.averaged(1, 1, attempt=2)


def test_stop_waits_for_the_last_reading(circle_of: CircleOf) -> None:
    circle = circle_of(2)
    stopped = circle.members[0]
    stopped.may_read.clear()
    circle.start(1, 1)
    assert stopped.reading.wait(WAIT_S)
    stopping = threading.Thread(target=stopped.exchange.stop, daemon=True)
    stopping.start()
    stopping.join(0.1)
    assert stopping.is_alive(), "the gradients are being read"
    stopped.may_read.set()
    join([stopping])
    assert stopped.outcomes.empty()
    circle.members[1].outcomes.get(timeout=WAIT_S)  # so little may have been through already


def test_stop_breaks_off_a_ring_under_way(
    circle_of: CircleOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "LEAST_SILENCE_S", 1e6)
    circle = circle_of(2)
    stopped, slow = circle.members
    stopped.exchange.stop()
    slow.may_read.clear()
    circle.start(1, 1)
    for member in circle.members:
        assert member.reading.wait(WAIT_S)
    stopped.exchange.stop()
    slow.may_read.set()
    assert slow.failed().reason == "superseded", "told, not found out"
    assert stopped.outcomes.empty()
    circle.averaged(1, 1, attempt=2)


# ---- faults


def test_a_ring_of_nothing_is_refused(circle_of: CircleOf) -> None:
    circle = circle_of(1)
    circle.start(0)
    assert circle.members[0].failed() == ExchangeFailed(ballot(), "", "bad-weight")


@pytest.mark.parametrize(
    ("fault", "suspect", "reason"),
    [
        (RuntimeError("poisoned"), "itself", "RuntimeError: poisoned"),
        (ExchangeBroken("ann", Reason.NOT_FINITE), "ann", "not-finite"),
        (ExchangeBroken("ann", Reason.NOT_FINITE, reported=True), "", "not-finite"),
        (ExchangeBroken(None, Reason.TOO_SLOW), "", "too-slow"),
        (ExchangeBroken("ann", Reason.TIMEOUT), "ann", "timeout"),
        (ExchangeBroken("ann", Reason.TIMEOUT, reported=True), "", "timeout"),
    ],
    ids=["its own", "seen", "heard of", "too slow", "silence seen", "silence heard of"],
)
def test_a_fault_voids_this_ring_only_and_names_who_was_seen(
    circle_of: CircleOf,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    suspect: str,
    reason: str,
) -> None:
    circle, lowered = circle_of(2), list[bool]()
    faulty, other = circle.members
    monkeypatch.setattr(faulty.exchange.speeds, "too_slow", lambda: lowered.append(True))
    faulty.fault = fault
    circle.start(1, 1)
    named = faulty.door.peer_id if suspect == "itself" else suspect
    assert faulty.failed() == ExchangeFailed(ballot(), named, reason)
    slow = reason == "too-slow" or (reason == "timeout" and suspect)
    assert len(lowered) == bool(slow), "the pace that is asked of a ring"
    assert other.failed().reason == "ring-broken", "hung up on, not kept waiting"
    faulty.fault = None
    circle.averaged(1, 1, attempt=2)


def test_many_members_have_longer_to_open_their_channels() -> None:
    """A member opens 126 channels in an exchange of 64; the handshakes share its processor."""
    assert opening_s(1) == opening_s(2) == OPEN_S
    assert opening_s(4) < 1.1 * OPEN_S
    assert opening_s(64) > OPEN_S + 2 * 62 * HANDSHAKES_S


@pytest.mark.parametrize(("hidden", "shares", "channels"), [
    ("..h", (1, 1, 0), 0), ("hhh", (), 3), ("...", (1, 1, 1), 0), (".hhh", (1, 1, 1, 1), 6),
    (".hhh", (0, 1, 0, 0), 4),
])  # fmt: skip
def test_only_channels_between_hidden_members_need_introductions(
    hidden: str, shares: tuple[int, ...], channels: int
) -> None:
    assert introductions([each == "h" for each in hidden], shares) == channels
    assert opening_s(8, channels) == pytest.approx(opening_s(8) + INTRODUCTION_S * channels)


@pytest.mark.parametrize(("moved_bytes", "seconds"), [(0, 1.3), (2e8, 2.05), (2e10, 10.0)])
def test_a_neighbour_may_be_silent_for_longer_in_a_long_exchange(
    moved_bytes: float, seconds: float
) -> None:
    assert silence_s(Pace(5.0, 10**6), moved_bytes) == pytest.approx(seconds)
