"""Rounds of swarms in which slow peers are carried: they count, and spoil nobody else's rounds."""

from dataclasses import replace

import pytest
from simulated_ring import Liar
from simulation import Setting, Swarm

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, Contribution, Head, Value, Voter
from atom.swarm.chain.messages import Accept, AcceptedVote, Nack, Prepare, Ring
from atom.swarm.identity import Identity
from atom.training.round import RoundMachine, Terms
from atom.training.round.events import (
    Action,
    Frozen,
    Phase,
    Received,
    RingFinished,
    Send,
    StartRing,
)
from atom.training.round.suspicions import PATIENT_WITH

US = Identity.create()
ME = Voter(US.peer_id, b"m" * 16)
LEADER, THIRD, FOURTH = (Voter(Identity.create().peer_id, b"o" * 16) for _ in range(3))
VOTERS = tuple(sorted([ME, LEADER]))
HEAD = Head(b"h" * 32, 7, 700, 700, VOTERS, tuple(voter.peer_id for voter in VOTERS))
BALLOT = Ballot(3, LEADER.peer_id, LEADER.incarnation)
HELLO = (LEADER.peer_id, LEADER.incarnation)
SEATS = tuple(Contribution(v.peer_id, v.incarnation, 32, 1.0) for v in (ME, LEADER, THIRD))
LEAF = Contribution(FOURTH.peer_id, FOURTH.incarnation, 8, 1.0, carrier=THIRD.peer_id)


def composed(swarm: Swarm) -> list[dict[str, str]]:
    """Each commit's leaves and their carriers, by name."""
    names = {seat.peer_id: seat.name for seat in swarm.seats}
    return [
        {names[c.peer_id]: names[c.carrier] for c in commit.value.contributions if c.carrier}
        for commit in swarm.living[0].chain.commits
    ]


def test_a_slow_peer_is_carried_and_counts_under_its_own_name() -> None:
    swarm = Swarm(5, Setting(peers=4, slow_peers=1))
    swarm.run_until_agreed(60.0, 5)
    carried = [leaves for leaves in composed(swarm) if leaves]
    assert len(carried) >= 3
    assert {leaf for leaves in carried for leaf in leaves} <= {"D"}
    last = swarm.living[0].chain
    own = [work for work in last.works if work[0] == swarm["D"].peer_id]
    counted = [c for v in last.commits for c in v.value.contributions]
    assert 4 * len(own) == sum(c.sequences for c in counted if c.peer_id == swarm["D"].peer_id)
    assert any("leaves-attached" in process.reports for process in swarm.living)


def test_a_carrier_that_dies_costs_an_attempt() -> None:
    swarm = Swarm(5, Setting(peers=5, slow_peers=1, ring_seconds=(1.0, 1.2)))
    swarm.run_until_agreed(60.0, 2)
    before = swarm.living[0].chain.head.round
    for _ in range(600):
        swarm.run(0.1)
        rings = [process.ring for process in swarm.living if process.ring is not None]
        leaves = [m for ring in rings[:1] for m in ring.members if m.carrier]
        if leaves and len(rings) == 5:
            break
    else:
        pytest.fail("no ring with a leaf")
    carrier = swarm.process_of(leaves[0].carrier)
    assert carrier is not None
    carrier.die()
    swarm.run_until_agreed(30.0, 2)
    assert swarm.living[0].chain.head.round > before
    last = swarm.living[0].chain.commits[-1].value.contributions
    assert carrier.peer_id not in {part.peer_id for part in last}


@pytest.mark.parametrize("style", Liar)
@pytest.mark.parametrize("name", ["A", "D"])
def test_rounds_go_on_with_a_liar_among_carriers_or_leaves(style: Liar, name: str) -> None:
    swarm = Swarm(7, Setting(peers=5, slow_peers=2, pass_seconds=(0.5,)))
    swarm.run_until_agreed(60.0, 1)
    liar = swarm[name].peer_id
    swarm.rings.liars[liar] = style
    swarm.run(120.0)
    honest = [process for process in swarm.living if process.peer_id != liar]
    assert min(process.chain.head.round for process in honest) >= 10, swarm.story(60)
    for process in honest:
        judged = [report.fields["round"] for report in process.told if report.kind == "ring-judged"]
        assert max(map(judged.count, judged), default=0) <= PATIENT_WITH
    last = [commit.value.contributions for commit in honest[0].chain.commits[-5:]]
    assert all(part.peer_id != liar for parts in last if len(parts) > 1 for part in parts)


def called(members: tuple[Contribution, ...]) -> tuple[RoundMachine, list[Action]]:
    """A machine that promised, and what it does when the ring is called."""
    machine = RoundMachine(ME, HEAD, b"d" * 32, Terms(global_batch=96), US.sign, 0.0)
    machine.handle(Received(*HELLO, Prepare(HEAD.digest, BALLOT)), 1.0)
    machine.handle(Frozen(BALLOT, 32, 1.0), 1.1)
    return machine, machine.handle(Received(*HELLO, Ring(HEAD.digest, BALLOT, members)), 1.2)


def reasons(actions: list[Action]) -> list[str]:
    said = [action.message for action in actions if isinstance(action, Send)]
    return [message.reason for message in said if isinstance(message, Nack)]


def test_members_look_who_is_to_carry_whom() -> None:
    machine, actions = called((*SEATS, LEAF))
    assert [a.members for a in actions if isinstance(a, StartRing)] == [(*SEATS, LEAF)]
    assert machine.phase is Phase.REDUCING
    for wrong in (
        (*SEATS, replace(LEAF, carrier=LEAF.peer_id)),
        (*SEATS[:2], LEAF),  # by one that is not there
        (*SEATS[:1], replace(LEAF, carrier=ME.peer_id)),
        (LEAF, *SEATS),
    ):
        machine, actions = called(wrong)
        assert reasons(actions) == [Reason.BAD_WEIGHT]
        assert machine.phase is Phase.PROMISED


def value_of(members: tuple[Contribution, ...]) -> Value:
    return Value(
        parent=HEAD.digest,
        round=HEAD.round + 1,
        origin=BALLOT,
        result_digest=b"r" * 32,
        gradient_norm=1.0,
        parent_state_digest=b"d" * 32,
        contributions=members,
        voters_next=VOTERS,
    )


@pytest.mark.parametrize(
    "told",
    [
        SEATS,
        (*SEATS, replace(LEAF, sequences=9)),
        (*SEATS, replace(LEAF, carrier=LEADER.peer_id)),
        (*SEATS, replace(LEAF, carrier="")),
        (*SEATS, LEAF, replace(LEAF, peer_id=Identity.create().peer_id, carrier=ME.peer_id)),
    ],
    ids=["forgotten", "another count", "another carrier", "with a seat", "one more"],
)
def test_nobody_votes_for_a_value_with_other_leaves_than_its_ring(
    told: tuple[Contribution, ...],
) -> None:
    machine, _ = called((*SEATS, LEAF))
    machine.handle(RingFinished(BALLOT, b"r" * 32, 1.0), 2.0)
    accept = Accept(HEAD.digest, BALLOT, value_of(told))
    assert reasons(machine.handle(Received(*HELLO, accept), 2.1)) == [Reason.BAD_WEIGHT]
    honest = Accept(HEAD.digest, BALLOT, value_of((*SEATS, LEAF)))
    sent = [a.message for a in machine.handle(Received(*HELLO, honest), 2.2) if isinstance(a, Send)]
    assert [type(message) for message in sent] == [AcceptedVote]
