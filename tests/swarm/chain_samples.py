"""Short chains of signed commits; and one well-formed commit without valid signatures, for tests of
bytes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from atom.swarm.chain import messages
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    ChainRules,
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
from atom.swarm.chain.commit_chain import EncodedRecords
from atom.swarm.chain.succession import VOUCH_DOMAIN, Evidence, next_voters, vouch_payload
from atom.swarm.identity import Identity, peer_id_of

INCARNATION = b"i" * 16


def page_of(commits: Sequence[Commit], since: int) -> bytes:
    """Return one page of a chain, as it is served."""
    return EncodedRecords().page(commits, since)


def voter_of(identity: Identity) -> Voter:
    return Voter(identity.peer_id, INCARNATION)


def beginning(
    founder: Identity, state_digest: bytes = b"s" * 32, trusted: Collection[Identity] = ()
) -> Head:
    """Return the first head of a run; the founder and `trusted` peers have tenure."""
    rules = ChainRules(trusted=frozenset(peer.peer_id for peer in trusted))
    return genesis(b"m" * 32, state_digest, voter_of(founder), rules)


def a_commit(
    head: Head,
    given: Mapping[Identity, int],
    voters: Sequence[Identity],
    loss: float = 2.0,
    survivors: Sequence[Identity] = (),
    **changes: Any,
) -> Commit:
    """Return a commit that may follow `head`, unless `changes` of its value spoil it.

    Args:
        head: Parent of the commit.
        given: Sequences of each contributor.
        voters: Peers that vote for it; the first one leads. The others were there, perhaps idle.
        loss: Mean loss of each contribution.
        survivors: Peers that open a branch with it.
        changes: Fields of the value that are different.
    """
    ballot = Ballot(1, voters[0].peer_id, INCARNATION)
    contributions = tuple(
        MemberCount(peer.peer_id, INCARNATION, sequences, loss * sequences)
        for peer, sequences in given.items()
    )
    alone = tuple(sorted(map(voter_of, survivors)))
    idle = {voter_of(peer) for peer in voters}.intersection(alone or head.voters)
    value = Value(
        parent=head.digest,
        round=head.round + 1,
        origin=ballot,
        result_digest=bytes([head.round % 256]) * 32,
        gradient_norm=0.5,
        parent_state_digest=b"d" * 32,
        contributions=contributions,
        voters_next=next_voters(head, alone, contributions, idle, frozenset(), ballot.coordinator),
        survivors=alone,
    )
    value = replace(value, **changes)
    return Commit(value, ballot, tuple(vote(each, value, ballot) for each in voters))


def vote(signer: Identity, value: Value, ballot: Ballot, **changes: Any) -> Vote:
    """Return a valid vote; `changes` of the signed `voter` or `survivors` make it invalid."""
    voter, survivors = voter_of(signer), changes.get("survivors", value.survivors)
    payload = vote_payload(value.parent, ballot, value.digest(), survivors)
    signed = signer.sign(VOTE_DOMAIN, signed_by(changes.get("voter", voter), payload))
    return Vote(changes.get("voter", voter), signed)


def vouch(signer: Identity, value: Value, ballot: Ballot, voter: Voter | None = None) -> Vote:
    """Return the signature of a voter that vouches for a value at a ballot."""
    voter = voter or voter_of(signer)
    payload = signed_by(voter, vouch_payload(value.parent, ballot, value.digest()))
    return Vote(voter, signer.sign(VOUCH_DOMAIN, payload))


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
EVIDENCE = Evidence((b"x" * 64,) * len(PARTS), VOTES[:1], (PEERS[1],), VOTES)
ACCEPTED = messages.Accepted(BALLOT, VALUE, EVIDENCE)
MESSAGES: list[messages.Message] = [
    messages.Prevote(PARENT, VOTERS),
    messages.PrevoteAnswer(PARENT),
    messages.PrevoteAnswer(PARENT, "busy"),
    messages.Prepare(PARENT, BALLOT, VOTERS),
    messages.Promise(PARENT, BALLOT, ACCEPTED, None, 8, 20.25, b"s" * 32, b"x" * 64, leaving=True),
    messages.Promise(PARENT, BALLOT, None, ACCEPTED, 8, -0.0, b"", b"x" * 64),
    messages.Nack(PARENT, BALLOT, BALLOT, "ballot-too-low"),
    messages.Ring(PARENT, BALLOT, PARTS, shares=(3, 0, 1000), voters_next=VOTERS),
    messages.Suspect(PARENT, BALLOT, PEERS[2]),
    messages.Vouched(PARENT, BALLOT, b"v" * 32, b"x" * 64),
    messages.Accept(PARENT, BALLOT, VALUE, EVIDENCE, BALLOT),
    messages.AcceptedVote(PARENT, BALLOT, b"x" * 64),
    messages.CommitNotice(COMMIT),
    messages.Abort(PARENT, BALLOT, "early"),
]
"""Messages of a round of each kind, for tests of bytes."""
