"""Short chains of commits, signed by those who are named."""

from collections.abc import Mapping, Sequence

from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Contribution,
    Head,
    Value,
    Vote,
    Voter,
    genesis,
    vote_payload,
)
from atom.swarm.chain.membership import signed_by
from atom.swarm.identity import Identity

INCARNATION = b"i" * 16


def voter_of(identity: Identity) -> Voter:
    return Voter(identity.peer_id, INCARNATION)


def beginning(founder: Identity) -> Head:
    return genesis(b"m" * 32, b"s" * 32, voter_of(founder))


def a_commit(
    head: Head,
    given: Mapping[Identity, int],
    voters: Sequence[Identity],
    loss: float = 2.0,
    survivors: Sequence[Identity] = (),
    following: Sequence[Identity] | None = None,
) -> Commit:
    """What `given` (sequences of each) makes of `head`, voted for by `voters`, who vote next unless
    `following` do."""
    first = voters[0]
    ballot = Ballot(1, first.peer_id, INCARNATION)
    alone = tuple(sorted(map(voter_of, survivors)))
    value = Value(
        parent=head.digest,
        round=head.round + 1,
        origin=ballot,
        result_digest=bytes([head.round % 256]) * 32,
        gradient_norm=0.5,
        parent_state_digest=b"d" * 32,
        contributions=tuple(
            Contribution(peer.peer_id, INCARNATION, sequences, loss * sequences)
            for peer, sequences in given.items()
        ),
        voters_next=tuple(sorted(map(voter_of, following or voters))),
        survivors=alone,
    )
    payload = vote_payload(head.digest, ballot, value.digest(), alone)
    votes = tuple(
        Vote(voter_of(each), each.sign(VOTE_DOMAIN, signed_by(voter_of(each), payload)))
        for each in voters
    )
    return Commit(value, ballot, votes)


def heads_along(first: Head, commits: Sequence[Commit]) -> list[Head]:
    heads = [first]
    for commit in commits:
        heads.append(heads[-1].after(commit.value))
    return heads
