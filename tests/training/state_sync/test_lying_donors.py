"""Donors that lie: shunned, and never believed; honest ones beside them serve."""

from collections.abc import Callable

import pytest

from atom.swarm.chain.commit import (
    Commit,
)
from tests.training.small_history import ROUNDS, STRANGER, chain_bytes, run, signed, value_on
from tests.training.state_sync.catching_peer import FakeDonors, Make, Served, peer_of

__all__ = ["peer_of"]


def forged(served: Served) -> None:
    story = run()
    commit = signed(story.heads[4], story.commits[4].value, forger=STRANGER)
    served.chain = chain_bytes([*story.commits[:4], commit])


def minority(served: Served) -> None:
    story = run()
    last = story.commits[4]
    commit = Commit(last.value, last.ballot, last.votes[:1])
    served.chain = chain_bytes([*story.commits[:4], commit])


def another_run(served: Served) -> None:
    """Well signed from the first round on, and none of it follows from our genesis."""
    value = value_on(run().heads[1], b"r" * 32, 1.0, run().digest(0))
    served.chain = chain_bytes([signed(run().heads[1], value)])


def heavier(served: Served) -> None:
    """Of other voters, from the first round on."""
    start = run().heads[0]
    value = value_on(start, b"r" * 32, 1.0, run().digest(0), sequences=10_000)
    served.chain = chain_bytes([signed(start, value, forger=STRANGER)])


def repeated(served: Served) -> None:
    """Endless: the same page after every round."""
    served.chain = chain_bytes([*run().commits[:2]] * 1000)


def torn_off(served: Served) -> None:
    served.chain = served.chain[:-3]


def not_a_chain(served: Served) -> None:
    served.chain = (12).to_bytes(4, "big") + b"no commit..."


def endless_record(served: Served) -> None:
    served.chain = b"\xff" * 64


def wrong_state(served: Served) -> None:
    served.offers = [run().heads[3].digest]
    served.states = {3: run().states[2]}


LIES = [
    forged, minority, another_run, heavier, repeated, torn_off, not_a_chain, endless_record,
    wrong_state,
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_liar_is_named_costs_few_pages_and_keeps_us_from_nobody(
    peer_of: Make, lie: Callable[[Served], None]
) -> None:
    peer, liar = peer_of(knows_start=False), Served()
    lie(liar)
    donors = FakeDonors({"liar": liar})
    assert peer.with_donors(donors).run(("liar",), discard=False)
    assert [who for who, _ in donors.liars] == ["liar"] * (lie is not wrong_state)
    assert len(donors.chain_bytes) <= 1 + ROUNDS
    assert not peer.state_sync.usable
    assert peer.journal.head == run().heads[0]
    donors.table["honest"] = Served(offers=[2])
    peer.state_sync.run(("liar", "honest"), discard=False)
    assert peer.at(ROUNDS)


@pytest.mark.parametrize("lie", [None, wrong_state], ids=["nothing", "another state"])
def test_a_newer_offer_that_does_not_hold_gives_way_to_an_older_one(
    peer_of: Make, lie: Callable[[Served], None] | None
) -> None:
    peer, liar = peer_of(knows_start=False), Served(offers=[5, 3])
    if lie is None:
        liar.states = {}
    else:
        lie(liar)
    donors = FakeDonors({"honest": Served(offers=[2]), "liar": liar})
    peer.with_donors(donors).run(("honest", "liar"), discard=False)
    assert peer.at(ROUNDS)
    assert donors.asked == [3, 2], "the newest that a commit vouches for comes first"
