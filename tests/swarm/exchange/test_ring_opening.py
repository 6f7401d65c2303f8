"""The connections of a ring: opened in time and all of them, or none, and somebody is named."""

import threading
from collections.abc import Callable

import pytest
import torch
from threaded_ring import PARENT, SILENCE_S, SOON, Swarm, sources, swarm_of

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import ExchangeBroken
from atom.swarm.exchange.plans import ring_tag
from atom.swarm.exchange.reduction import hear_broken
from atom.swarm.stream.frames import Channel, Patience, Purpose

__all__ = ["swarm_of"]


def test_an_absent_neighbour_is_named(swarm_of: Callable[..., Swarm]) -> None:
    swarm = swarm_of(3)
    with pytest.raises(ExchangeBroken) as failure:
        swarm.open_all(0, 0.1)
    assert (failure.value.suspect, failure.value.reason) == (swarm.order[2], Reason.TIMEOUT)
    swarm.transports[1].close()
    with pytest.raises(ExchangeBroken) as failure:
        swarm.open_all(0, 0.1)
    assert (failure.value.suspect, failure.value.reason) == (swarm.order[1], Reason.RING_BROKEN)


def test_an_exchange_that_cannot_be_opened_leaves_no_connection_open(
    swarm_of: Callable[..., Swarm], monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, made = swarm_of(3, (1, 1, 1)), list[Channel]()
    here, there = swarm.transports[:2]
    connect = here.connect

    def once(peer_id: str, purpose: Purpose, tag: bytes, timeout_s: float) -> Channel:
        if peer_id == swarm.order[2]:
            raise ConnectionError("no second one")
        made.append(connect(peer_id, purpose, tag, timeout_s))
        return made[-1]

    monkeypatch.setattr(here, "connect", once)
    with pytest.raises(ExchangeBroken, match="no second one"):
        swarm.open_all(0)
    monkeypatch.undo()
    assert [channel.closed.is_set() for channel in made] == [True]
    arrived = there.connect(here.peer_id, Purpose.RING, swarm.terms(0).tag + bytes([1]))
    with pytest.raises(ExchangeBroken) as failure:
        swarm.open_all(0, 0.2)
    assert failure.value.suspect == swarm.order[2]
    assert hear_broken(arrived, swarm.order).suspect == swarm.order[2]
    with pytest.raises(ConnectionError):
        arrived.recv_header(0, Patience(SOON))


def test_without_a_thread_for_every_dial_no_connection_stays_open(
    swarm_of: Callable[..., Swarm], monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, made, refused = swarm_of(3, (1, 1, 1)), list[Channel](), threading.Event()
    here, start = swarm.transports[0], threading.Thread.start
    connect = here.connect

    def start_but_second(thread: threading.Thread) -> None:
        if thread.name == "atom-dial_1":
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    def late(peer_id: str, purpose: Purpose, tag: bytes, timeout_s: float) -> Channel:
        assert refused.wait(SOON)
        made.append(connect(peer_id, purpose, tag, timeout_s))
        return made[-1]

    monkeypatch.setattr(here, "connect", late)
    monkeypatch.setattr(threading.Thread, "start", start_but_second)
    with pytest.raises(RuntimeError, match="new thread"):
        swarm.open_all(0)
    assert made
    assert all(channel.closed.is_set() for channel in made)


def test_a_channel_of_an_old_ballot_is_not_taken(swarm_of: Callable[..., Swarm]) -> None:
    swarm = swarm_of(2)
    old = ring_tag(PARENT, Ballot(0, swarm.order[0], bytes(16)))
    stale = swarm.transports[1].connect(swarm.order[0], Purpose.RING, old + bytes([1]))
    with pytest.raises(ExchangeBroken) as failure:
        swarm.open_all(0, 0.1)
    assert failure.value.reason is Reason.TIMEOUT
    stale.close()


def test_who_is_long_in_opening_is_not_taken_for_frozen(
    swarm_of: Callable[..., Swarm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last reaches the first only after a while; the others' connections stand."""
    swarm, elements = swarm_of(3), 1 << 20
    parts = sources(3, elements)
    connect, long_way = swarm.transports[2].connect, threading.Event()

    def slowly(peer_id: str, purpose: Purpose, tag: bytes, timeout_s: float) -> Channel:
        long_way.wait(2.5 * SILENCE_S)
        return connect(peer_id, purpose, tag, timeout_s)

    monkeypatch.setattr(swarm.transports[2], "connect", slowly)
    futures = swarm.start(
        lambda rank: swarm.member(
            rank, parts[rank], elements, silence_s=SILENCE_S, opening_s=4 * SILENCE_S
        )
    )
    first, *others = (future.result(timeout=SOON) for future in futures)
    assert all(torch.equal(first, other) for other in others)
