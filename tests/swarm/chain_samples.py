"""Short chains of commits, signed by those who are named; and one commit, for tests of bytes: well
formed, signed by nobody."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Head,
    MemberCount,
    Value,
    Vote,
    Voter,
    genesis,
    signed_by,
    vote_payload,
)
from atom.swarm.identity import Identity, peer_id_of

INCARNATION = b"i" * 16


def voter_of(identity: Identity) -> Voter:
    return Voter(identity.peer_id, INCARNATION)


def beginning(founder: Identity, state_digest: bytes = b"s" * 32) -> Head:
    return genesis(b"m" * 32, state_digest, voter_of(founder))


def a_commit(
    head: Head,
    given: Mapping[Identity, int],
    voters: Sequence[Identity],
    loss: float = 2.0,
    survivors: Sequence[Identity] = (),
    following: Sequence[Identity] | None = None,
    **changes: Any,
) -> Commit:
    """What `given` (sequences of each) makes of `head`, voted for by `voters`, who vote next unless
    `following` do. `changes`: of the value."""
    ballot = Ballot(1, voters[0].peer_id, INCARNATION)
    value = Value(
        parent=head.digest,
        round=head.round + 1,
        origin=ballot,
        result_digest=bytes([head.round % 256]) * 32,
        gradient_norm=0.5,
        parent_state_digest=b"d" * 32,
        contributions=tuple(
            MemberCount(peer.peer_id, INCARNATION, sequences, loss * sequences)
            for peer, sequences in given.items()
        ),
        voters_next=tuple(sorted(map(voter_of, following or voters))),
        survivors=tuple(sorted(map(voter_of, survivors))),
    )
    value = replace(value, **changes)
    return Commit(value, ballot, tuple(vote(each, value, ballot) for each in voters))


def vote(signer: Identity, value: Value, ballot: Ballot, **changes: Any) -> Vote:
    """A good one; `changes`: of what is signed, `voter` or `survivors`."""
    voter, survivors = voter_of(signer), changes.get("survivors", value.survivors)
    payload = vote_payload(value.parent, ballot, value.digest(), survivors)
    signed = signer.sign(VOTE_DOMAIN, signed_by(changes.get("voter", voter), payload))
    return Vote(changes.get("voter", voter), signed)


def heads_along(first: Head, commits: Sequence[Commit]) -> list[Head]:
    heads = [first]
    for commit in commits:
        heads.append(heads[-1].after(commit.value))
    return heads


PEERS = [peer_id_of(bytes([number]) * 32) for number in range(4)]
PARENT = b"p" * 32
VOTERS = tuple(Voter(peer, b"i" * 16, number) for number, peer in enumerate(PEERS))
BALLOT = Ballot(3, PEERS[0], b"i" * 16)
PARTS = tuple(MemberCount(peer, b"i" * 16, 8, 20.25) for peer in PEERS)
VALUE = Value(PARENT, 7, BALLOT, b"r" * 32, 1.5, b"s" * 32, PARTS, VOTERS, VOTERS[:2])
VOTES = tuple(Vote(voter, b"x" * 64) for voter in VOTERS)
COMMIT = Commit(VALUE, BALLOT, VOTES)
