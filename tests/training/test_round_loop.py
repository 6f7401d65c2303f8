"""The loop between events, the machine's decisions and the executor; no replica, no swarm."""

import math
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from atom.base.errors import PeerRefused, Reason
from atom.swarm.chain.commit import Ballot, Commit, Head, MemberCount, Value, Voter, genesis
from atom.swarm.chain.messages import Abort, Leases, Prevote, encode
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease
from atom.swarm.transport.limits import FIRST_HOLD_S, LONGEST_HOLD_S, Backoff
from atom.training.loop import MAX_WAITING, Inbox, RoundLoop
from atom.training.replica.pacing import SwarmCount
from atom.training.round import events
from atom.training.round.events import Action, Event, Phase, View
from tests.event_list import EventList
from tests.manual_clock import ManualClock
from tests.swarm.swarm_samples import a_lease

PEERS = sorted(Identity.create().peer_id for _ in range(3))
ME, ANN, BOB = (Voter(peer, b"i" * 16) for peer in PEERS)
BALLOT = Ballot(1, ME.peer_id, ME.incarnation)
START = replace(
    genesis(b"m" * 32, b"s" * 32, ME), voters=(ME, ANN, BOB), members=(ME.peer_id, ANN.peer_id)
)
WAIT_S = 20.0


class ScriptedMachine:
    """Answers events with what the test laid down, and keeps the events."""

    me, excluded, answered = ME, frozenset[str](), frozenset[str]()
    global_batch, counted_peers = 96, 55

    def __init__(self) -> None:
        self.head: Head = START
        self.phase = Phase.ACCUMULATING
        self.answers: dict[type, list[Action]] = {}
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.views: queue.SimpleQueue[View] = queue.SimpleQueue()

    def handle(self, event: Event, now: float) -> list[Action]:
        if isinstance(event, events.Tick):
            self.views.put(event.view)
        else:
            self.events.put(event)
        return self.answers.pop(type(event), [])


class Stage:
    """A loop between a worker and a transport of which it uses a small part."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Actions and messages, in order."""
        self.threads: set[str] = set()
        self.execution_fails: Exception | None = None
        self.machine: Any = ScriptedMachine()
        self.counts: list[SwarmCount] = []
        worker: Any = SimpleNamespace(pass_seconds=0.75, update_swarm=self.counts.append)
        self.transport: Any = SimpleNamespace(
            offenders=Backoff(FIRST_HOLD_S, LONGEST_HOLD_S), send=self._send
        )
        self.reachable = True
        self.clock, self.events = ManualClock(1000.0), EventList()
        self.failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.inbox = Inbox()
        self.changes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        executor: Any = SimpleNamespace(
            carry_out=self._execute,
            shared=SimpleNamespace(sequences_at=lambda head: 5),
            worker=worker,
            transport=self.transport,
            clock=self.clock,
            log=self.events,
        )
        tells = self.inbox, lambda: self.changes.put(True), self.failures.put
        self.loop = RoundLoop(self.machine, executor, *tells)

    def _execute(self, action: Action) -> None:
        if self.execution_fails is not None:
            raise self.execution_fails
        self.threads.add(threading.current_thread().name)
        self.calls.put(action)

    def _send(self, peer_id: str, raw: bytes) -> bool:
        self.calls.put((peer_id, raw))
        return self.reachable

    def next_event(self) -> Event:
        event: Event = self.machine.events.get(timeout=WAIT_S)
        return event

    def next_call(self) -> Any:
        return self.calls.get(timeout=WAIT_S)

    def read(self, *leases: Lease) -> View:
        """The view after a reading of the directory: the last one that it brought about."""
        self.loop.read({lease.peer_id: lease for lease in leases})
        self.settle()
        return self.loop.view

    def settle(self) -> None:
        """Everything posted so far has been handled."""
        handled = threading.Event()
        self.inbox.put(handled.set)
        assert handled.wait(WAIT_S)


@pytest.fixture
def idle() -> Stage:
    """Return a stage that is not started: posted events wait in the inbox."""
    return Stage()


@pytest.fixture
def stage() -> Iterator[Stage]:
    before = set(threading.enumerate())
    stage = Stage()
    stage.loop.start()
    assert stage.changes.get(timeout=WAIT_S), "the lease says where we begin"
    yield stage
    stage.loop.close()
    assert set(threading.enumerate()) <= before
    assert stage.failures.empty(), stage.failures.get()


def lease(voter: Voter, serial: int = 1, **changes: Any) -> Lease:
    plain = {"incarnation": voter.incarnation, "serial": serial, "head": START.digest, "round": 0}
    return a_lease(voter.peer_id, **plain | changes)


def value() -> Value:
    part = MemberCount(ME.peer_id, ME.incarnation, 8, 1.0)
    return Value(START.digest, 1, BALLOT, b"r" * 32, 1.0, b"s" * 32, (part,), (ME,))


# ---- leases that peers send directly


def test_leases_go_past_the_machine_and_a_forged_one_is_an_offence() -> None:
    heard = list[tuple[str, Leases]]()

    def hear(sender: str, leases: Leases) -> None:
        if leases.records:
            raise PeerRefused(Reason.BAD_SIGNATURE, "forged")
        heard.append((sender, leases))

    inbox = Inbox(hear)
    asks, forged = Leases(wanted=(bytes(8),)), Leases(records=(b"forged",))
    inbox.receive(ANN.peer_id, ANN.incarnation, encode(asks))
    assert heard == [], "nothing is read before the loop has begun"
    inbox.is_read = True
    inbox.receive(ANN.peer_id, ANN.incarnation, encode(asks))
    assert heard == [(ANN.peer_id, asks)]
    assert inbox.empty()
    inbox.receive(ANN.peer_id, ANN.incarnation, encode(forged))
    assert inbox.get_nowait() == events.Offence(ANN.peer_id, Reason.BAD_SIGNATURE)


# ---- actions


def test_actions_are_carried_out_in_order_on_the_loops_thread(stage: Stage) -> None:
    message, part = Abort(START.digest, BALLOT, "early"), value().contributions
    ours = [
        events.Thaw(),
        events.Freeze(BALLOT),
        events.StartExchange(START.digest, BALLOT, part),
        events.FetchResult(b"r" * 32, (ANN.peer_id,), True),
        events.Apply(Commit(value(), BALLOT, ())),
    ]
    stage.machine.answers[events.LeaveRequested] = [*ours, events.Send(ANN.peer_id, message)]
    stage.loop.leave()
    carried_out = [stage.next_call() for _ in range(6)]
    assert carried_out == [*ours, (ANN.peer_id, encode(message))]
    assert stage.threads == {"round"}


def test_reports_become_events_but_not_all_of_a_flood_and_who_is_accused_is_put_aside(
    stage: Stage,
) -> None:
    """A peer that has its messages refused can send a hundred each second."""
    refused = [events.Report("value-refused", {"round": 1, "peer": ANN.peer_id})] * 1000
    accused = events.Offence(ANN.peer_id, Reason.BAD_SIGNATURE)
    stage.machine.answers[events.LeaveRequested] = [
        *refused,
        events.Report("branch", {"round": 2}),
        accused,
    ]
    stage.loop.leave()
    stage.loop.pass_ended()
    stage.settle()
    kinds = [event["event"] for event in stage.events.events]
    assert 1 <= kinds.count("value-refused") <= 20
    assert {"event": "branch", "round": 2} in stage.events.events
    assert stage.loop.view.quarantined == {ANN.peer_id}


def test_what_cannot_be_sent_comes_back_as_unreachable(stage: Stage) -> None:
    stage.reachable = False
    stage.machine.answers[events.LeaveRequested] = [events.Send(ANN.peer_id, Prevote(START.digest))]
    stage.loop.leave()
    assert stage.next_event() == events.LeaveRequested()
    assert stage.next_event() == events.Unreachable(ANN.peer_id)
    stage.inbox.unreachable(BOB.peer_id)
    assert stage.next_event() == events.Unreachable(BOB.peer_id)


# ---- messages


@pytest.mark.parametrize(
    ("raw", "reason"), [(b"\xff" * 40, "malformed"), (bytes(1 << 19), "too-large")]
)
def test_who_sends_garbage_is_quarantined_and_complaints_are_bounded(
    stage: Stage, raw: bytes, reason: str
) -> None:
    for number in range(100):
        stage.inbox.receive(f"stranger {number}", b"i" * 16, raw)
    stage.settle()
    told = {"peer": "stranger 0", "reason": reason, "seconds": FIRST_HOLD_S}
    assert stage.events.events[0] == {"event": "peer-quarantined", **told}
    assert len(stage.events.events) == 20
    assert stage.machine.events.empty(), "nothing of it reaches the machine"
    stage.loop.pass_ended()
    stage.settle()
    assert len(stage.loop.view.quarantined) == 100


def test_the_inbox_is_bounded_for_strangers_alone(idle: Stage) -> None:
    raw = encode(Prevote(START.digest))
    idle.inbox.receive(BOB.peer_id, BOB.incarnation, raw)  # before the loop: dropped
    idle.inbox.is_read = True
    for _ in range(MAX_WAITING + 50):
        idle.inbox.receive(ANN.peer_id, ANN.incarnation, raw)
    idle.loop.leave()
    idle.loop.start()
    idle.loop.close()
    received = [idle.next_event() for _ in range(MAX_WAITING + 1)]
    message = events.Received(ANN.peer_id, ANN.incarnation, Prevote(START.digest))
    assert received == [message] * MAX_WAITING + [events.LeaveRequested()], (
        "our own is never dropped"
    )
    assert idle.machine.events.empty()


# ---- leases


def test_the_view_shows_the_others_and_our_own_counts(stage: Stage) -> None:
    assert stage.loop.view.seen_at == -math.inf, "nobody has looked"
    ours, theirs = lease(ME, sequences=999), lease(ANN)
    view = stage.read(ours, theirs, lease(BOB, sequences=2))
    assert view.fresh.keys() == {ANN.peer_id, BOB.peer_id}, "our own lease says nothing new"
    assert view.fresh[ANN.peer_id] == theirs
    assert (view.sequences, view.pass_seconds, view.seen_at) == (5, 0.75, 1000.0)
    assert stage.counts[-1] == SwarmCount(5 + 2, 3, 1000.0, 2.5)


# ---- the end


def test_a_failure_ends_the_loop_and_is_reported(idle: Stage) -> None:
    failure = OSError("no space left")
    idle.execution_fails = failure
    idle.machine.answers[events.LeaveRequested] = [events.Freeze(BALLOT)]
    idle.loop.start()
    idle.loop.leave()
    assert idle.failures.get(timeout=WAIT_S) is failure
    idle.loop.close()
    assert idle.failures.empty()


def test_it_ticks_without_news(stage: Stage) -> None:
    for _ in range(3):
        stage.machine.views.get(timeout=WAIT_S)
