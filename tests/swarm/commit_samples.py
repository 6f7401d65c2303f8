"""A commit and what it is made of, for tests of bytes: well formed, signed by nobody."""

from atom.swarm.chain.commit import Ballot, Commit, Contribution, Value, Vote, Voter
from atom.swarm.identity import peer_id_of

PEERS = [peer_id_of(bytes([number]) * 32) for number in range(4)]
PARENT = b"p" * 32
VOTERS = tuple(Voter(peer, b"i" * 16, number) for number, peer in enumerate(PEERS))
BALLOT = Ballot(3, PEERS[0], b"i" * 16)
PARTS = tuple(Contribution(peer, b"i" * 16, 8, 20.25) for peer in PEERS)
VALUE = Value(PARENT, 7, BALLOT, b"r" * 32, 1.5, b"s" * 32, PARTS, VOTERS, VOTERS[:2])
VOTES = tuple(Vote(voter, b"x" * 64) for voter in VOTERS)
COMMIT = Commit(VALUE, BALLOT, VOTES)
