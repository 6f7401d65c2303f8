"""Rings of one ballot: equal results on every member, and no reading after a stop."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atom.base.clock import BootClock
from atom.base.events import EventList
from atom.swarm.chain.commit import Ballot, Contribution
from atom.swarm.exchange.codec import codec_named
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import arena_digest
from atom.swarm.stream.frames import Channel
from atom.training.exchange import ErrorFeedback, Exchange, RingStyle
from atom.training.round.events import RingFailed, RingFinished, StartRing
from atom.training.storage.results import Results
from tests.swarm.local_transport import LocalNetwork, LocalTransport

ELEMENTS = 256
PARENT = b"p" * 32
WAIT_S = 20.0


class Doorway(LocalTransport):
    """Lets a ring's opening wait until `let_in` is set."""

    def __init__(self, network: LocalNetwork, number: int) -> None:
        super().__init__(network, Identity.create(), bytes([number]) * 16, EventList())
        self.opening = threading.Event()
        self.let_in = threading.Event()
        self.let_in.set()

    def accept_ring(self, peer_id: str, tag: bytes, timeout_s: float) -> Channel:
        self.opening.set()
        assert self.let_in.wait(WAIT_S)
        return super().accept_ring(peer_id, tag, timeout_s)


class Member:
    """An exchange with gradients that say when they are asked for, and may be held up."""

    def __init__(
        self, network: LocalNetwork, number: int, folder: Path, style: RingStyle | None = None
    ) -> None:
        self.transport = Doorway(network, number)
        self.transport.start()
        self.results = Results(folder, ELEMENTS)
        self.gradients = torch.full((ELEMENTS,), float(10**number))
        self.reads = 0
        self.reading = threading.Event()
        self.may_read = threading.Event()
        self.may_read.set()
        self.fault: Exception | None = None
        self.outcomes: queue.SimpleQueue[RingFinished | RingFailed] = queue.SimpleQueue()
        self.exchange = Exchange(
            self.transport,
            self.results,
            self._read,
            self.outcomes.put,
            BootClock(),
            style or RingStyle(),
        )

    def _read(self, parent: bytes) -> Tensor:
        self.reads += 1
        self.reading.set()
        assert self.may_read.wait(WAIT_S)
        if self.fault is not None:
            raise self.fault
        return self.gradients

    def finished(self) -> RingFinished:
        outcome = self.outcomes.get(timeout=WAIT_S)
        assert isinstance(outcome, RingFinished), outcome
        return outcome

    def failed(self) -> RingFailed:
        outcome = self.outcomes.get(timeout=WAIT_S)
        assert isinstance(outcome, RingFailed), outcome
        return outcome

    def result(self, digest: bytes) -> Tensor:
        held = self.results.get(digest)
        assert held is not None
        return held


class Circle:
    """Some members on one network."""

    def __init__(self, size: int, folder: Path, styles: Sequence[RingStyle] = ()) -> None:
        network = LocalNetwork()
        self.members = [
            Member(network, number, folder / str(number), styles[number] if styles else None)
            for number in range(size)
        ]

    def ballot(self, attempt: int = 1) -> Ballot:
        return Ballot(attempt, self.members[0].transport.peer_id, bytes(16))

    def shares(self, sequences: tuple[int, ...]) -> tuple[Contribution, ...]:
        return tuple(
            Contribution(member.transport.peer_id, bytes(16), count, 1.0)
            for member, count in zip(self.members, sequences, strict=True)
        )

    def start(
        self, sequences: tuple[int, ...], attempt: int = 1, parts: tuple[int, ...] = ()
    ) -> Ballot:
        for number in range(len(self.members)):
            self.start_one(number, sequences, attempt, parts)
        return self.ballot(attempt)

    def start_one(
        self, number: int, sequences: tuple[int, ...], attempt: int = 1, parts: tuple[int, ...] = ()
    ) -> None:
        exchange = self.members[number].exchange
        exchange.start(StartRing(PARENT, self.ballot(attempt), self.shares(sequences), parts))

    def close(self) -> None:
        for member in self.members:
            member.transport.let_in.set()
            member.may_read.set()
            member.exchange.close()
        for member in self.members:
            member.transport.close()
        join(rings())


def rings() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ring"]


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


@pytest.fixture
def circle_of(tmp_path: Path) -> Iterator[Callable[..., Circle]]:
    made: list[Circle] = []

    def make(size: int, styles: Sequence[RingStyle] = ()) -> Circle:
        made.append(Circle(size, tmp_path / str(len(made)), styles))
        return made[-1]

    before = set(threading.enumerate())
    yield make
    for circle in made:
        circle.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("sequences", [(4,), (3, 5), (2, 4, 2)])
def test_all_members_hold_the_same_mean(
    circle_of: Callable[[int], Circle], sequences: tuple[int, ...]
) -> None:
    circle = circle_of(len(sequences))
    ballot = circle.start(sequences)
    outcomes = [member.finished() for member in circle.members]
    assert len(set(outcomes)) == 1, "digest and norm are everybody's"
    total = sum(float(10**number) for number in range(len(sequences))) / sum(sequences)
    mean = torch.full((ELEMENTS,), total)
    for member in circle.members:
        assert torch.equal(member.result(outcomes[0].digest), mean)
        assert member.exchange.seconds.keys() == {outcomes[0].digest}
    assert outcomes[0].ballot == ballot
    assert outcomes[0].digest == arena_digest(mean)
    assert outcomes[0].norm == pytest.approx(total * ELEMENTS**0.5)


def test_parts_of_equal_size_give_the_rings_digest(circle_of: Callable[[int], Circle]) -> None:
    circle, outcomes = circle_of(3), []
    for attempt, parts in enumerate(((), (1, 1, 1)), start=1):
        circle.start((2, 4, 2), attempt, parts)
        outcomes += [member.finished() for member in circle.members]
    assert len({(outcome.digest, outcome.norm) for outcome in outcomes}) == 1
    assert {outcome.ballot.attempt for outcome in outcomes} == {1, 2}


def test_a_ring_tells_of_the_way_to_the_right_neighbour(
    circle_of: Callable[[int], Circle], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str, int]] = []

    def carried(left: str, right: str, count: int, sending_s: float, seconds: float) -> None:
        assert 0.0 < sending_s <= seconds
        told.append((left, right, count))

    circle = circle_of(3)
    for member in circle.members:
        tell = partial(carried, member.transport.peer_id)
        monkeypatch.setattr(member.transport.links, "carried", tell)
    circle.start((1, 1, 1))
    for member in circle.members:
        member.finished()
    peers = [member.transport.peer_id for member in circle.members]
    assert sorted(pair[:2] for pair in told) == sorted(
        zip(peers, [*peers[1:], peers[0]], strict=True)
    )
    assert all(count >= 4 * ELEMENTS * 4 // 3 for _, _, count in told)


def test_the_gradients_are_left_as_they_were(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(2)
    kept = [member.gradients.clone() for member in circle.members]
    circle.start((1, 1))
    for member, before in zip(circle.members, kept, strict=True):
        member.finished()
        assert torch.equal(member.gradients, before)


def test_a_member_without_sequences_adds_nothing(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(3)
    circle.members[1].gradients.fill_(float("nan"))  # whatever lies there is not its part
    circle.start((1, 0, 3))
    digests = {member.finished().digest for member in circle.members}
    assert len(digests) == 1
    mean = torch.full((ELEMENTS,), (1.0 + 100.0) / 4)
    assert torch.equal(circle.members[1].result(digests.pop()), mean)
    assert circle.members[1].reads == 0


def coarse(size: int) -> list[RingStyle]:
    return [RingStyle(codec_named("int8"), ErrorFeedback(ELEMENTS)) for _ in range(size)]


def feedback_of(style: RingStyle) -> ErrorFeedback:
    assert style.feedback is not None
    return style.feedback


def test_what_a_committed_round_lost_is_in_the_next_ones_gradients(
    circle_of: Callable[..., Circle],
) -> None:
    styles = coarse(2)
    circle = circle_of(2, styles)
    for number, member in enumerate(circle.members):
        generator = torch.Generator().manual_seed(number)
        member.gradients.copy_(torch.randn(ELEMENTS, generator=generator))
    exact = sum(member.gradients.double() for member in circle.members)
    circle.start((1, 1))
    digest = {member.finished().digest for member in circle.members}.pop()
    given_back = torch.zeros(ELEMENTS, dtype=torch.float64)
    for style in styles:
        feedback_of(style).committed(digest)
        gradients = torch.zeros(ELEMENTS)
        feedback_of(style).fold(gradients)
        given_back += gradients
        assert gradients.abs().max() > 1e-4
    sums = circle.members[0].result(digest).double() * 2
    torch.testing.assert_close(sums + given_back, exact, rtol=1e-5, atol=1e-5)


def test_what_another_ring_lost_is_not_given_back(circle_of: Callable[..., Circle]) -> None:
    styles = coarse(2)
    circle = circle_of(2, styles)
    circle.members[0].gradients.copy_(torch.linspace(-1, 3, ELEMENTS))
    circle.start((1, 1))
    first = {member.finished().digest for member in circle.members}.pop()
    circle.members[1].gradients.mul_(3)
    circle.start((1, 2), attempt=2)
    for member in circle.members:
        assert member.finished().digest != first
    for style in styles:
        feedback_of(style).committed(first)
        gradients = torch.zeros(ELEMENTS)
        feedback_of(style).fold(gradients)
        assert not gradients.any(), "the arena was written again since"


def test_a_member_without_sequences_keeps_what_it_is_owed(
    circle_of: Callable[..., Circle],
) -> None:
    styles = coarse(2)
    circle = circle_of(2, styles)
    circle.members[0].gradients.copy_(torch.linspace(-1, 3, ELEMENTS))
    circle.start((1, 1))
    first = {member.finished().digest for member in circle.members}.pop()
    for style in styles:
        feedback_of(style).committed(first)
    feedback_of(styles[1]).fold(circle.members[1].gradients)
    circle.start((0, 2), attempt=2)
    second = {member.finished().digest for member in circle.members}.pop()
    feedback_of(styles[0]).committed(second)
    gradients = torch.zeros(ELEMENTS)
    feedback_of(styles[0]).fold(gradients)
    assert gradients.any()
    feedback_of(styles[0]).fold(gradients.zero_())
    assert not gradients.any(), "once"


def test_another_history_owes_nothing(circle_of: Callable[..., Circle]) -> None:
    styles = coarse(1)
    circle = circle_of(1, styles)
    circle.members[0].gradients.copy_(torch.linspace(-1, 3, ELEMENTS))
    circle.start((1,))
    feedback_of(styles[0]).committed(circle.members[0].finished().digest)
    feedback_of(styles[0]).forget()
    gradients = torch.zeros(ELEMENTS)
    feedback_of(styles[0]).fold(gradients)
    assert not gradients.any()


def test_a_ring_of_nothing_is_refused(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(1)
    ballot = circle.start((0,))
    assert circle.members[0].failed() == RingFailed(ballot, "", "bad-weight")


def test_stopped_while_opening_it_never_reads(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(2)
    stopped, other = circle.members
    stopped.transport.let_in.clear()
    circle.start_one(0, (1, 1))
    assert stopped.transport.opening.wait(WAIT_S)
    opening = rings()
    stopped.exchange.stop(circle.ballot())
    assert [thread.is_alive() for thread in opening] == [True], "nobody waited for the opening"
    circle.start_one(1, (1, 1))
    stopped.transport.let_in.set()
    other.failed()  # the connections came up, and were dropped again
    join(opening)
    assert stopped.reads == 0
    assert stopped.outcomes.empty(), "whoever stopped it does not hear of it again"


def test_stop_waits_for_the_last_reading(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(2)
    stopped = circle.members[0]
    stopped.may_read.clear()
    ballot = circle.start((1, 1))
    assert stopped.reading.wait(WAIT_S)
    returned = threading.Event()

    def stop() -> None:
        stopped.exchange.stop(ballot)
        returned.set()

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    assert not returned.wait(0.1), "the gradients are being read"
    stopped.may_read.set()
    assert returned.wait(WAIT_S)
    join([stopping])
    assert stopped.outcomes.empty()
    circle.members[1].outcomes.get(timeout=WAIT_S)  # so little may have been through already


def test_stop_breaks_off_a_ring_under_way(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(2)
    stopped, slow = circle.members
    slow.may_read.clear()
    ballot = circle.start((1, 1))
    assert slow.reading.wait(WAIT_S)
    assert stopped.reading.wait(WAIT_S)
    stopped.exchange.stop(ballot)
    assert len(rings()) == 1, "only the slow one's is left"
    assert stopped.outcomes.empty()
    slow.may_read.set()
    slow.failed()


def test_stopping_another_ballot_changes_nothing(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(2)
    circle.members[0].may_read.clear()
    circle.start((1, 1))
    assert circle.members[0].reading.wait(WAIT_S)
    circle.members[0].exchange.stop(circle.ballot(attempt=7))
    circle.members[0].may_read.set()
    assert circle.members[0].finished() == circle.members[1].finished()


def test_another_ring_after_a_stopped_one(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(2)
    stopped, other = circle.members
    stopped.may_read.clear()
    stopped.transport.let_in.clear()
    circle.start((1, 1))
    assert stopped.transport.opening.wait(WAIT_S)
    for member in circle.members:
        member.exchange.stop(circle.ballot())
    stopped.transport.let_in.set()
    stopped.may_read.set()
    ballot = circle.start((1, 1), attempt=2)
    assert stopped.finished().ballot == ballot
    assert other.finished().ballot == ballot


def test_a_fault_voids_this_ring_only(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(2)
    faulty, other = circle.members
    faulty.fault = RuntimeError("poisoned")
    ballot = circle.start((1, 1))
    me = faulty.transport.peer_id
    assert faulty.failed() == RingFailed(ballot, me, "RuntimeError: poisoned")
    assert other.failed().reason == "ring-broken", "hung up on, not kept waiting"
    faulty.fault = None
    circle.start((1, 1), attempt=2)
    assert faulty.finished() == other.finished()


def test_without_room_for_a_result_the_neighbours_are_hung_up_on(
    circle_of: Callable[[int], Circle], monkeypatch: pytest.MonkeyPatch
) -> None:
    circle = circle_of(2)
    full, other = circle.members

    def no_room() -> Tensor:
        raise MemoryError("no room")

    monkeypatch.setattr(full.results, "buffer", no_room)
    ballot = circle.start((1, 1))
    assert full.failed() == RingFailed(ballot, full.transport.peer_id, "MemoryError: no room")
    assert other.failed().reason == "ring-broken", "hung up on, not kept waiting"


def test_numbers_that_are_not_finite_name_their_peer(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(2)
    circle.members[1].gradients[17] = float("inf")
    circle.start((1, 1))
    suspect = circle.members[1].transport.peer_id
    failures = [member.failed() for member in circle.members]
    assert {failed.reason for failed in failures} == {"not-finite"}
    assert {failed.suspect for failed in failures} - {""} == {suspect}, "seen, or heard of"


def test_who_broke_a_ring_is_named(circle_of: Callable[[int], Circle]) -> None:
    circle = circle_of(3)
    one, two, three = circle.members
    two.fault = ValueError("unwell")
    circle.start((1, 1, 1))
    suspects = {one.failed().suspect, three.failed().suspect}
    assert suspects - {""} == {two.transport.peer_id}, "seen, or heard of"
