"""Neighbours in our own network: two witnesses with tenure see them at our public address."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from atom.swarm.chain.commit import Head, Voter, genesis
from atom.swarm.chain.messages import MAX_RECORDS, Leases
from atom.swarm.chain.tenure import from_the_start
from atom.swarm.records.lease import LEASE_SECONDS, SignedLease, short_name
from atom.swarm.transport.lease_exchange import LeaseExchange, neighbour_names
from tests.swarm.swarm_samples import a_lease

UNIX = 1_700_000_000.0
HOME, ELSEWHERE = "203.0.113.7", "2001:db8:1:2::/64"


def head_of(tenured: Sequence[str], members: Sequence[str]) -> Head:
    first = genesis(b"m" * 32, b"s" * 32, Voter("us", bytes(16)))
    return replace(first, members=(*members,), tenures=from_the_start(tenured))


@pytest.fixture
def ours() -> LeaseExchange:
    """Our exchange. W1 and w2 have tenure, new1 and new2 are members without tenure."""
    exchange = LeaseExchange("us", "place")
    exchange.know(head_of(["us", "w1", "w2"], ["us", "w1", "w2", "new1", "new2", "near"]), 0.0)
    return exchange


def says(exchange: LeaseExchange, witness: str, *names: str, now: float = 0.0) -> None:
    message = Leases(neighbours=tuple(map(short_name, names)))
    assert exchange.hear(witness, message, now, UNIX + now) is None


def test_two_witnesses_make_a_neighbour_for_the_time_of_a_lease(ours: LeaseExchange) -> None:
    says(ours, "w1", "near")
    assert ours.neighbours(0.0) == set()
    says(ours, "w2", "near", now=1.0)
    assert ours.neighbours(1.0) == {"near"}
    assert ours.neighbours(LEASE_SECONDS) == {"near"}
    assert ours.neighbours(LEASE_SECONDS + 0.1) == set(), "the first witness said it too long ago"


@pytest.mark.parametrize(
    "claims",
    [
        [("w1", "near"), ("w1", "near")],
        [("new1", "near"), ("new2", "near")],
        [("w1", "near"), ("new1", "near")],
        [("w1", "w2"), ("w2", "w2")],
        [("w1", "near"), ("w2", "near"), ("w2", "new1")],
        [("w1", "stranger"), ("w2", "stranger")],
        [("stranger", "near"), ("us", "near"), ("w1", "near")],
        [("w1", "us"), ("w2", "us")],
    ],
    ids=["one-twice", "no-tenure", "one-of-two", "of-itself", "taken-back", "unknown-peer",
         "unknown-witness", "ourselves"],
)  # fmt: skip
def test_other_claims_change_nothing(ours: LeaseExchange, claims: list[tuple[str, str]]) -> None:
    for witness, name in claims:
        says(ours, witness, name)
    assert ours.neighbours(0.0) == set()


def test_a_witness_that_lost_its_tenure_does_not_count(ours: LeaseExchange) -> None:
    says(ours, "w1", "near")
    says(ours, "w2", "near")
    assert ours.neighbours(0.0) == {"near"}
    ours.know(head_of(["us", "w1"], ["us", "w1", "w2", "near"]), 0.0)
    assert ours.neighbours(0.0) == set()


def test_each_mate_is_sent_the_names_of_the_mates_at_its_own_public_host() -> None:
    hosts = {"one": HOME, "two": HOME, "far": ELSEWHERE, "stranger": HOME}
    witness = LeaseExchange("us", "place", lambda: hosts)
    witness.know(head_of([], ["us", "one", "two", "far", "hidden"]), 0.0)
    witness.publish(SignedLease(b"record", a_lease("us"), UNIX + LEASE_SECONDS))
    sent = {peer_id: message.neighbours for peer_id, message in witness.due(0.0).items()}
    one, two = short_name("one"), short_name("two")
    assert sent == {"one": (two,), "two": (one,), "far": (), "hidden": ()}


def test_of_a_crowd_at_one_host_few_are_named() -> None:
    crowd = {f"peer{number}": HOME for number in range(2 * MAX_RECORDS)}
    assert len(neighbour_names("peer0", crowd)) == MAX_RECORDS
