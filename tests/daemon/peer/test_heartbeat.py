"""The directory's thread: a DHT that is slow while a peer starts, and a heartbeat's end."""

import asyncio
import queue
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from atom.base.errors import AddressError
from atom.daemon.peer import heartbeat as heartbeat_module
from atom.daemon.peer.heartbeat import PATIENCE_S, DirectoryThread, Heartbeat, enter_dht
from atom.swarm.chain.commit import Voter, genesis
from atom.swarm.chain.messages import Leases, decode
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease, SignedLease, short_name
from atom.swarm.records.manifest import encode_lease, lease_key
from atom.swarm.records.store import DirectoryUnavailable
from atom.swarm.transport.dialer import Hint
from atom.swarm.transport.lease_exchange import LeaseExchange
from tests.daemon.peer.small_peer import SmallDirectory, on_thread
from tests.event_list import EventList
from tests.manual_clock import ManualClock
from tests.swarm.swarm_samples import a_lease

WAIT_S = 20.0

LEASE = cast(Lease, SimpleNamespace(peer_id="us"))
LOOP_STEPS = 20
"""More than a rhythm takes to the moment from which it waits."""


class SlowDht:
    """Each question that is in vain takes so long."""

    def __init__(self, clock: ManualClock, vain: int, seconds: float) -> None:
        self._clock, self._vain, self._seconds = clock, vain, seconds
        self.asked = 0

    async def answer(self) -> str:
        self.asked += 1
        if self.asked > self._vain:
            return "answer"
        self._clock.advance(self._seconds)
        raise DirectoryUnavailable("keep: no answer from the DHT")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def directory() -> SmallDirectory:
    return SmallDirectory()


@pytest.fixture
def thread(
    clock: ManualClock, directory: SmallDirectory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DirectoryThread]:
    monkeypatch.setattr(heartbeat_module, "ASK_AGAIN_S", 0.0)
    thread = on_thread(directory, clock)
    yield thread
    thread.close()
    assert directory.is_closed


def test_it_is_asked_again_but_not_for_ever(thread: DirectoryThread, clock: ManualClock) -> None:
    dht = SlowDht(clock, vain=3, seconds=PATIENCE_S / 4)
    assert thread.ask(dht.answer) == "answer"
    assert dht.asked == 4
    silent = SlowDht(clock, vain=99, seconds=PATIENCE_S / 4)
    with pytest.raises(AddressError, match="no answer from the DHT") as caught:
        thread.ask(silent.answer)
    assert silent.asked == 4
    assert caught.value.hint == "try again in a moment"


def test_a_node_that_does_not_come_up_in_time_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def too_late(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(heartbeat_module, "open_directory", too_late)
    with pytest.raises(AddressError, match=r"did not start: no answer"):
        enter_dht("tiny", None, NodeSettings(), EventList())


async def end_with_news(heartbeat: Heartbeat) -> int:
    """Cancel all tasks right after a change of the lease, and return how many of them go on."""
    for _ in range(LOOP_STEPS):
        await asyncio.sleep(0)
    heartbeat.nudge()
    await asyncio.sleep(0)  # the event is set now, but the task that waits for it is not awake yet
    for rhythm in heartbeat._tasks:
        rhythm.cancel()
    _, going_on = await asyncio.wait(heartbeat._tasks, timeout=5.0)
    return len(going_on)


def test_news_at_the_moment_of_leaving_keep_nobody(
    thread: DirectoryThread, directory: SmallDirectory, clock: ManualClock
) -> None:
    events, failures = EventList(), list[BaseException]()
    sent = list[str]()
    heartbeat = Heartbeat(
        thread, lambda leases: None, failures.append, events, clock,
        LeaseExchange("us", "place"), lambda peer_id, raw: sent.append(peer_id),
    )  # fmt: skip
    heartbeat.close()
    assert directory.published == [], "a peer that published nothing sends no farewell"
    heartbeat.start(lambda: LEASE, lambda: 60.0)
    assert thread.call(end_with_news(heartbeat)) == 0
    heartbeat.close()
    assert directory.published[-1] is LEASE
    assert (events.events, failures, sent) == ([], [], [])


class SilentDirectory(SmallDirectory):
    """A DHT process that is frozen: no question is answered."""

    async def store_lease(self, signed: SignedLease) -> None:
        await asyncio.Event().wait()

    async def read_leases(self) -> dict[str, Lease]:
        await asyncio.Event().wait()
        raise AssertionError("it never answers")


def test_leases_are_sent_and_handed_on_while_the_dht_keeps_silent(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Identity.create(), Identity.create()
    first = genesis(b"m" * 32, b"s" * 32, Voter(ours.peer_id, bytes(16)))
    exchange = LeaseExchange(ours.peer_id, lease_key("tiny", ours.peer_id))
    exchange.know(replace(first, members=(theirs.peer_id,)), clock.now())
    seen, sent = queue.Queue[dict[str, Lease]](), queue.Queue[tuple[str, bytes]]()
    failures = list[BaseException]()
    monkeypatch.setattr(heartbeat_module, "LAST_WORD_S", 0.05)
    thread = on_thread(SilentDirectory(), clock)
    try:
        heartbeat = Heartbeat(
            thread, seen.put, failures.append,
            EventList(), clock, exchange, lambda peer_id, raw: sent.put((peer_id, raw)),
        )  # fmt: skip
        heartbeat.start(lambda: a_lease(ours.peer_id), lambda: 60.0)
        receiver, raw = sent.get(timeout=WAIT_S)
        assert (receiver, type(decode(raw)), type(raw)) == (theirs.peer_id, Leases, Hint)
        lease, ends = a_lease(theirs.peer_id), time.time() + 8.0
        record = encode_lease(lease, "tiny", ours.peer_id, theirs, ends)
        heartbeat.hear(theirs.peer_id, Leases((record,), wanted=(short_name(theirs.peer_id),)))
        assert seen.get(timeout=WAIT_S) == {each: a_lease(each) for each in exchange._mates}
        answer = decode(sent.get(timeout=WAIT_S)[1])
        assert answer == Leases((record,))
        heartbeat.close()
        assert failures == []
    finally:
        thread.close()
