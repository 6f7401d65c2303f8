"""A coordinator that calls for a one-shot exchange: members do as told, within reason."""

import pytest

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, Contribution, Head, Voter
from atom.swarm.chain.messages import Nack, Prepare, Ring
from atom.swarm.exchange.algorithm import MAX_MEMBERS
from atom.swarm.identity import Identity
from atom.training.round import RoundMachine, Terms
from atom.training.round.events import Action, Frozen, Phase, Received, Send, StartRing

US = Identity.create()
ME = Voter(US.peer_id, b"m" * 16)
OTHERS = [Voter(Identity.create().peer_id, b"o" * 16) for _ in range(MAX_MEMBERS)]
LEADER = OTHERS[0]
VOTERS = tuple(sorted([ME, LEADER]))
HEAD = Head(b"h" * 32, 7, 700, 700, VOTERS, tuple(voter.peer_id for voter in VOTERS))
BALLOT = Ballot(3, LEADER.peer_id, LEADER.incarnation)


def called(members: int, one_shot: bool) -> tuple[RoundMachine, list[Action]]:
    """A machine that promised, and what it does when the exchange is called."""
    machine = RoundMachine(ME, HEAD, b"d" * 32, Terms(global_batch=96), US.sign, 0.0)
    hello = (LEADER.peer_id, LEADER.incarnation)
    machine.handle(Received(*hello, Prepare(HEAD.digest, BALLOT)), 1.0)
    machine.handle(Frozen(BALLOT, 32, 1.0), 1.1)
    seats = [Contribution(v.peer_id, v.incarnation, 32, 1.0) for v in (ME, *OTHERS)]
    ring = Ring(HEAD.digest, BALLOT, tuple(seats[:members]), one_shot)
    return machine, machine.handle(Received(*hello, ring), 1.2)


@pytest.mark.parametrize("one_shot", [False, True])
def test_members_average_as_they_are_told(one_shot: bool) -> None:
    machine, actions = called(MAX_MEMBERS, one_shot)
    assert [a.one_shot for a in actions if isinstance(a, StartRing)] == [one_shot]
    assert machine.phase is Phase.REDUCING


def test_nobody_is_made_to_connect_to_hundreds() -> None:
    machine, actions = called(MAX_MEMBERS + 1, one_shot=True)
    said = [a.message for a in actions if isinstance(a, Send)]
    assert [m.reason for m in said if isinstance(m, Nack)] == [Reason.TOO_LARGE]
    assert not any(isinstance(action, StartRing) for action in actions)
    assert machine.phase is Phase.PROMISED
    machine, actions = called(MAX_MEMBERS + 1, one_shot=False)
    assert machine.phase is Phase.REDUCING, "a ring has two neighbours, however many it has"
