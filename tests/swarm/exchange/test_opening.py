"""The connections of an exchange: opened in time and all of them, or none, and one is named."""

import threading
from collections import Counter

import pytest
from threaded_ring import PARENT, SOON, Make, Swarm
from transport_peers import until

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.allreduce import ExchangeBroken
from atom.swarm.exchange.plans import ring_tag
from atom.swarm.exchange.reduction import hear_broken
from atom.swarm.stream.frames import Channel, Patience, Purpose


def not_opened(swarm: Swarm) -> tuple[str | None, Reason]:
    """By the first member."""
    with pytest.raises(ExchangeBroken) as failure:
        swarm.open(0, 0.1)
    return failure.value.suspect, failure.value.reason


@pytest.mark.parametrize("shares", [(), (1, 1, 1), (0, 1, 0)])
def test_an_absent_neighbour_is_named(swarm_of: Make, shares: tuple[int, ...]) -> None:
    swarm = swarm_of(3, shares)
    if not shares:
        assert not_opened(swarm) == (swarm.order[2], Reason.TIMEOUT)
    swarm.transports[1].close()
    assert not_opened(swarm) == (swarm.order[1], Reason.RING_BROKEN)


@pytest.mark.parametrize(("parent", "number"), [(PARENT, 0), (b"o" * 32, 1)])
def test_a_channel_of_an_old_parent_or_ballot_is_not_taken(
    swarm_of: Make, parent: bytes, number: int
) -> None:
    swarm = swarm_of(2)
    old = ring_tag(parent, Ballot(number, swarm.order[0], bytes(16)))
    swarm.transports[1].connect(swarm.order[0], Purpose.RING, old + bytes([1]))
    assert not_opened(swarm) == (swarm.order[1], Reason.TIMEOUT)


def test_an_exchange_that_cannot_be_opened_leaves_no_connection_and_says_who_is_missing(
    swarm_of: Make,
) -> None:
    swarm = swarm_of(3, (1, 1, 1))
    here, there, missing = swarm.transports
    arrived = there.connect(here.peer_id, Purpose.RING, swarm.terms(0).tag + bytes([1]))
    assert not_opened(swarm) == (missing.peer_id, Reason.TIMEOUT)
    assert hear_broken(arrived, swarm.order).suspect == missing.peer_id
    with pytest.raises(ConnectionError):
        arrived.recv_header(0, Patience(SOON))


@pytest.mark.parametrize("no_thread", [True, False])
def test_if_one_dial_fails_the_others_are_closed_again(
    swarm_of: Make, monkeypatch: pytest.MonkeyPatch, refused: Counter[str], no_thread: bool
) -> None:
    swarm, made = swarm_of(3, (1, 1, 1)), list[Channel]()
    refused["atom-dial_1"] = int(no_thread)
    connect, failed = swarm.transports[0].connect, threading.Event()

    def one_of_two(peer_id: str, purpose: Purpose, tag: bytes, timeout_s: float) -> Channel:
        if peer_id == swarm.order[2]:
            failed.set()
            raise ConnectionError("can't dial")
        until(lambda: failed.is_set() or (no_thread and not refused["atom-dial_1"]))
        made.append(connect(peer_id, purpose, tag, timeout_s))
        return made[-1]

    monkeypatch.setattr(swarm.transports[0], "connect", one_of_two)
    with pytest.raises((RuntimeError, ExchangeBroken), match="can't"):
        swarm.open(0)
    assert made
    assert all(channel.closed.is_set() for channel in made)
