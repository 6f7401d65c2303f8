"""A split swarm: its peers leave their own chain for the one whose head the run's owner signed."""

from atom.swarm.addresses import RecentHead
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.commit_chain import verified_heads
from atom.swarm.state.arenas import state_digest
from atom.training.storage.run_storage import Journal
from tests.swarm.chain_samples import a_commit
from tests.training.catching_peer import Make, Peer, Served, peer_of
from tests.training.small_history import FOUNDER, PEERS, ROUNDS, chain_bytes, run

__all__ = ["peer_of"]

SHARED = 2
"""Rounds before the swarm split."""


def other_part(length: int = ROUNDS, sequences: int = 9) -> list[Commit]:
    """Return the chain of the other part of the swarm: its quorum decided other values, with the
    results of our part, so the states are equal in every byte and the heads are not."""
    story = run()
    commits, head = story.commits[:SHARED], story.heads[SHARED]
    for ours in story.commits[SHARED:length]:
        value = ours.value
        given = {FOUNDER: sequences, **dict.fromkeys(PEERS[1:], 0)}
        commit = a_commit(
            head,
            given,
            PEERS[:2],
            result_digest=value.result_digest,
            gradient_norm=value.gradient_norm,
            parent_state_digest=value.parent_state_digest,
        )
        commits, head = [*commits, commit], head.after(commit.value)
    return commits


def heads_of(commits: list[Commit]) -> list[Head]:
    return verified_heads(run().heads[0], commits)


def donor_of(commits: list[Commit]) -> Served:
    served = Served(offers=[SHARED])
    served.chain = chain_bytes(commits)
    return served


def signed(commits: list[Commit], number: int) -> RecentHead:
    """Return a head as the boundary passes it on: with a signature that it verified."""
    return RecentHead(number, heads_of(commits)[number].digest, b"s" * 64)


def restarted(peer: Peer, head: RecentHead) -> None:
    peer.recovery.pinned = head
    peer.recovery.restore()


def is_on(peer: Peer, commits: list[Commit]) -> bool:
    """Return True if journal, file and state are at the end of that chain."""
    again = Journal(peer.folder / "chain.bin", run().heads[0])
    return (
        peer.shared.usable
        and peer.journal.commits == again.commits == commits
        and state_digest(peer.replica.state_arenas()) == run().digest(len(commits))
    )


def test_a_peer_leaves_its_chain_for_the_one_that_the_owner_signed(peer_of: Make) -> None:
    """Even for a shorter chain, and for one that another donor offers in vain without it."""
    for length in (ROUNDS, ROUNDS - 1):
        peer, theirs = peer_of(at=ROUNDS), other_part(length)
        restarted(peer, signed(theirs, SHARED + 1))
        assert not peer.shared.usable
        assert peer.journal.head == run().heads[ROUNDS], "kept until the other chain is here"
        assert peer.run(donor_of(theirs), discard=True) == ""
        assert is_on(peer, theirs)
        assert [e for e in peer.events.events if e["event"] == "double-vote"] == []


def test_without_the_owner_s_signature_a_rival_chain_is_refused(peer_of: Make) -> None:
    peer, theirs = peer_of(at=SHARED + 1), other_part()
    peer.recovery.pinned = signed(theirs, ROUNDS)._replace(signature=b"")
    assert "another round 3 than the one decided here" in peer.run(donor_of(theirs), discard=True)
    assert peer.at(SHARED + 1)


def test_no_chain_but_the_signed_one_replaces_ours(peer_of: Make) -> None:
    peer, theirs, third = peer_of(at=ROUNDS), other_part(), other_part(sequences=10)
    restarted(peer, signed(theirs, ROUNDS))
    problem = peer.run(donor_of(third), donor_of(other_part(ROUNDS - 1)), discard=True)
    assert problem.count("another round 3 than the one decided here") == 2
    assert "not the chain" in peer.run(Served(), discard=True)
    assert peer.journal.head == run().heads[ROUNDS]
    assert peer.run(donor_of(third), donor_of(theirs), discard=True) == ""
    assert is_on(peer, theirs)


def test_a_signed_head_overrides_once_and_then_the_rules_hold_again(peer_of: Make) -> None:
    peer, theirs = peer_of(at=ROUNDS), other_part(ROUNDS - 1)
    restarted(peer, signed(theirs, ROUNDS - 1))
    assert peer.run(donor_of(theirs), discard=True) == ""
    assert "another round 3 than the one decided here" in peer.run(Served(), discard=True)
    peer.shared.snapshot(peer.shared.digest())  # as a round's executor does after catching up
    peer.recovery.restore()
    assert is_on(peer, theirs)


def test_a_peer_behind_the_signed_head_keeps_its_state_until_it_sees_that_chain(
    peer_of: Make,
) -> None:
    """The peer's chain may be a part of the owner's chain: then only a few results are missing."""
    peer, theirs = peer_of(at=SHARED + 1), other_part()
    restarted(peer, signed(theirs, ROUNDS))
    assert peer.at(SHARED + 1)
    donor = donor_of(theirs)
    assert peer.proven_head(peer.door(donor)) == heads_of(theirs)[-1]
    assert peer.run(donor) == ""
    assert is_on(peer, theirs)


def test_the_owner_may_choose_a_branch(peer_of: Make) -> None:
    """The quorum's part may be gone, or may be the liars' part."""
    story, peer = run(), peer_of(at=ROUNDS)
    value = story.commits[SHARED].value
    branch = story.branch(
        SHARED, result_digest=value.result_digest, gradient_norm=value.gradient_norm
    )
    theirs = [*story.commits[:SHARED], branch]
    restarted(peer, signed(theirs, SHARED + 1))
    assert peer.run(donor_of(theirs), discard=True) == ""
    assert is_on(peer, theirs)
