"""Chains that part from ours and were signed by the same voters."""

from dataclasses import replace

import pytest

from atom.swarm.chain.check import double_vote
from atom.swarm.chain.commit import (
    Commit,
)
from atom.training.state_sync.state_sync import CatchUpFailed
from tests.training.small_history import chain_bytes, run, signed, value_on
from tests.training.state_sync.catching_peer import FakeDonors, Make, Served, peer_of

__all__ = ["peer_of"]


def test_who_signed_two_rounds_of_one_head_is_named_and_ours_stays(peer_of: Make) -> None:
    """The longer chain is preferred, but where they part the same two made both quorums."""
    peer, liar, head = peer_of(at=2), Served(), run().heads[1]
    commits = run().commits[:1]
    for number in range(1, 6):
        result = bytes([number]) * 32
        commits = [*commits, signed(head, value_on(head, result, 1.0, run().digest(number % 4)))]
        head = head.after(commits[-1].value)
    liar.chain = chain_bytes(commits)
    peer.with_donors(FakeDonors({"liar": liar})).usable = True
    with pytest.raises(CatchUpFailed):
        peer.state_sync.run({"liar": head.digest}, discard=False)
    assert peer.at(2)
    both = {voter.peer_id for voter in run().heads[1].voters[:2]}
    assert set(peer.state_sync.take_equivocal()) == both
    assert peer.state_sync.take_equivocal() == ()


def longer_rival(attempt: int, by: slice) -> list[Commit]:
    """Parts from the run's own chain after its first round, and goes on further."""
    head, commits = run().heads[1], run().commits[:1]
    for number in range(1, 6):
        value = value_on(head, run().commits[number % 3].value.result_digest, 1.0, b"s" * 32)
        value = replace(value, origin=replace(value.origin, attempt=attempt))
        commits = [*commits, signed(head, value, by=by)]
        head = head.after(value)
    return commits


def test_votes_at_two_ballots_prove_nothing() -> None:
    """A coordinator that keeps its first commit for itself, and ignores what the promises for its
    second ballot report, has honest voters sign both: they must not be put aside for that."""
    assert double_vote(run().commits, longer_rival(2, slice(2))) is None
    double = double_vote(run().commits, longer_rival(1, slice(2)))
    assert double is not None
    assert double.by == set(run().heads[1].voters[:2])


def test_two_that_one_liar_told_different_things_meet_again() -> None:
    """Each has signed with the liar alone, at one ballot. If each kept its own, no quorum of honest
    voters would ever stand at one head."""
    ours, theirs = run().commits, longer_rival(1, slice(1, 3))
    here, there = double_vote(ours, theirs), double_vote(theirs, ours)
    assert here is not None
    assert there is not None
    assert here.by == there.by == {run().heads[1].voters[1]}
    assert (here.is_ours, there.is_ours) == (False, False)
