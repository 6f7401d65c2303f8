"""Participants. In the model a voter is (peer number, incarnation number), a ballot is (attempt,
peer number, incarnation number): plain tuples, ordered as the real ones are."""

from collections.abc import Iterable
from functools import cache

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atom.swarm.chain.commit import Ballot, Voter
from atom.swarm.identity import Identity

NAMES = "ABCDE"

VoterKey = tuple[int, int]
BallotKey = tuple[int, int, int]


def _identity(number: int) -> Identity:
    seed = blake3(f"identity {number}".encode()).digest()
    return Identity(Ed25519PrivateKey.from_private_bytes(seed))


IDENTITIES = sorted((_identity(n) for n in range(len(NAMES))), key=lambda one: one.peer_id)
"""Sorted by peer id, so that numbers compare as ids do."""


@cache
def voter(key: VoterKey) -> Voter:
    peer, incarnation = key
    return Voter(IDENTITIES[peer].peer_id, bytes([incarnation]) * 16)


def voters(keys: Iterable[VoterKey]) -> tuple[Voter, ...]:
    return tuple(voter(key) for key in keys)


@cache
def ballot(key: BallotKey) -> Ballot:
    attempt, peer, incarnation = key
    return Ballot(attempt, IDENTITIES[peer].peer_id, bytes([incarnation]) * 16)


@cache
def key_of(one: Voter) -> VoterKey:
    return [i.peer_id for i in IDENTITIES].index(one.peer_id), one.incarnation[0]


def name(key: VoterKey) -> str:
    """A, and A' A'' after its restarts."""
    return NAMES[key[0]] + "'" * key[1]
