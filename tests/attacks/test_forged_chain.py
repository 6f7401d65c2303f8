"""A chain that old voters forge: it never replaces a round that a quorum decided here.

Every voter that once was a quorum can sign another history at any later time, and make it longer
than the true one. A peer that has the true rounds keeps them; a newcomer is told a recent head.
"""

from dataclasses import replace
from typing import Any

import pytest

from atom.base.errors import StorageError
from atom.swarm.addresses import RecentHead
from atom.swarm.chain.commit import Commit
from atom.swarm.chain.commit_chain import parse_commits, verified_heads
from tests.swarm.chain_samples import a_commit, vote
from tests.training.catching_peer import Make, Served
from tests.training.small_history import FOUNDER, PEERS, ROUNDS, chain_bytes, run

EXTRA = 20


def forged(parts_at: int, signers: int = 2) -> list[Commit]:
    """Return a chain that parts from the true one after `parts_at` rounds and is longer than it."""
    story = run()
    head, commits = story.heads[parts_at], story.commits[:parts_at]
    given: dict[Any, int] = {FOUNDER: 9, **dict.fromkeys(PEERS[1:], 0)}
    for _ in range(parts_at, ROUNDS + EXTRA):
        commits = [*commits, a_commit(head, given, PEERS[:signers])]
        head = head.after(commits[-1].value)
    return commits


def liar(commits: list[Commit]) -> Served:
    served = Served()
    served.chain = chain_bytes(commits)
    return served


def test_the_forged_chain_is_valid_and_would_be_preferred() -> None:
    """Only the rule below keeps it out: rank alone prefers the longer chain."""
    end = verified_heads(run().heads[0], forged(1))[-1]
    assert end.prefers(run().heads[-1])


def test_a_longer_chain_of_a_quorum_does_not_replace_our_rounds(peer_of: Make) -> None:
    peer, attacker = peer_of(at=ROUNDS), liar(forged(1))
    for _ in range(2):
        assert "another round 2 than the one decided here" in peer.run(attacker)
    assert peer.at(ROUNDS)
    ours, theirs = parse_commits((peer.folder / "double-vote.bin").read_bytes())[0]
    assert (ours, theirs) == (run().commits[1], forged(1)[1])
    reported = [each for each in peer.events.events if each["event"] == "double-vote"]
    assert [each["voters"] for each in reported] == [[key.peer_id for key in PEERS[:2]]]
    assert [each["all_lied"] for each in reported] == [True]


@pytest.mark.parametrize("later", ["the ballot", "the exchange"])
def test_signatures_that_an_honest_voter_may_give_prove_no_lie_of_each(
    peer_of: Make, later: str
) -> None:
    """Others may have lied to it, so it is named, and not accused."""
    peer, story = peer_of(at=ROUNDS), run()
    true = story.commits[1]
    ballot = replace(true.ballot, attempt=2)
    origin = ballot if later == "the exchange" else true.ballot
    value = replace(true.value, result_digest=b"o" * 32, origin=origin)
    at = true.ballot if later == "the exchange" else ballot
    other = Commit(value, at, tuple(vote(key, value, at) for key in PEERS[:2]))
    assert peer.run(liar([story.commits[0], other])) != ""
    [reported] = [each for each in peer.events.events if each["event"] == "double-vote"]
    assert (len(reported["voters"]), reported["all_lied"]) == (2, False)


def test_a_peer_that_saw_the_forged_chain_still_follows_the_true_one(peer_of: Make) -> None:
    peer = peer_of(at=ROUNDS - 2)
    assert peer.run(liar(forged(1))) != ""
    assert peer.run(Served()) == ""
    assert peer.at(ROUNDS)


def test_a_newcomer_with_a_recent_head_joins_no_forged_chain(peer_of: Make) -> None:
    peer = peer_of(at=0)
    peer.recovery.pinned = RecentHead(ROUNDS - 1, run().heads[ROUNDS - 1].digest)
    for attacker in (liar(forged(1)), liar(run().commits[:2])):
        assert "not the chain that the join address names" in peer.run(attacker)
    assert peer.at(0)
    assert peer.run(Served()) == ""
    assert peer.at(ROUNDS)


def test_a_state_of_another_chain_is_refused_at_the_start(peer_of: Make) -> None:
    peer = peer_of(at=ROUNDS)
    peer.recovery.pinned = RecentHead(2, b"x" * 32)
    with pytest.raises(StorageError, match="another chain than the join address names"):
        peer.recovery.restore()
