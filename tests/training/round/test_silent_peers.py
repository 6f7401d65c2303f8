"""A peer that is gone, but whose lease still shows what it counted: the others do its work."""

import pytest
from scene import GONE, MATE, ME, Scene, lease, promise, strangers

from atom.base.errors import Reason
from atom.swarm.chain.commit import Ballot, Voter
from atom.swarm.chain.messages import Nack, Prepare, Ring
from atom.swarm.records.lease import LEASE_SECONDS, Lease
from atom.training.round.events import Phase, Send, Unreachable


def counted_on(scene: Scene) -> set[str]:
    return scene.leases.keys() - scene.machine.excluded


def test_the_rest_work_for_a_silent_peer_long_before_its_lease_lapses() -> None:
    scene = Scene(mate_counts=32)
    assert counted_on(scene) == {MATE.peer_id, GONE.peer_id}
    scene.play(8.0)
    assert scene.reports.count("attempt-ended timeout") == 1, "then there is nothing to try"
    assert counted_on(scene) == {MATE.peer_id}
    scene.own = 64
    ring = scene.until_sent(Ring)
    counts = {member.peer_id: member.sequences for member in ring.members}
    assert counts == {ME.peer_id: 64, MATE.peer_id: 32}


def test_a_late_promise_is_an_answer_all_the_same() -> None:
    """The attempt has ended without it: the next one waits for that peer again."""
    scene = Scene(mate_counts=32)
    call = scene.until_sent(Prepare)
    scene.play(4.0)
    assert counted_on(scene) == {MATE.peer_id}
    scene.hear(promise(call.ballot, 32, voter=GONE), GONE)
    scene.tick()
    assert counted_on(scene) == {MATE.peer_id, GONE.peer_id}


def test_who_refuses_has_answered() -> None:
    scene = Scene(mate_counts=32)
    call = scene.until_sent(Prepare)
    scene.hear(Nack(call.parent, call.ballot, None, Reason.BUSY), GONE)
    scene.play(0.3)
    assert "attempt-ended timeout" in scene.reports
    assert counted_on(scene) == {MATE.peer_id, GONE.peer_id}


def test_who_cannot_be_reached_is_not_counted_on() -> None:
    scene = Scene()
    scene.tick()
    scene.tell(Unreachable(GONE.peer_id))
    scene.tick()
    assert counted_on(scene) == {MATE.peer_id}
    assert scene.machine.phase is Phase.ACCUMULATING


def test_claims_of_strangers_start_no_round() -> None:
    scene = Scene(mate_counts=0)
    scene.show(strangers(5).values(), 96)
    scene.show([MATE, GONE], 16)
    scene.play(10.0)
    assert scene.sent(Prepare) == []


def test_strangers_are_asked_and_not_waited_for() -> None:
    scene, crowd = Scene(), strangers(5)
    del scene.leases[GONE.peer_id]
    scene.show(crowd.values(), 96)
    scene.show([MATE], 64)
    scene.until_sent(Prepare)
    called_at = scene.now
    scene.until_sent(Ring)
    asked = {send.to for send in scene.done(Send) if isinstance(send.message, Prepare)}
    assert asked == {MATE.peer_id, *crowd}
    assert scene.now - called_at < 0.5, "promises are waited for one second at least"


THERE = lease(MATE, 32)
ANOTHER = lease(Voter(GONE.peer_id, b"n" * 16), 0)


@pytest.mark.parametrize(
    ("shown", "waits"),
    [
        # its lease lapses
        ({MATE: THERE}, False),
        # we see no peer
        ({}, True),
        # a new process
        ({MATE: THERE, GONE: ANOTHER}, False),
        # it is there
        ({MATE: THERE, GONE: lease(GONE, 32)}, True),
    ],
)
def test_a_coordinator_is_waited_for_while_it_may_be_there(
    shown: dict[Voter, Lease], waits: bool
) -> None:
    scene = Scene()
    scene.tick()
    scene.hear(Prepare(scene.machine.head.digest, Ballot(1, GONE.peer_id, GONE.incarnation)), GONE)
    scene.tick(LEASE_SECONDS + 1.0, pass_seconds=60.0)
    assert scene.machine.phase is Phase.PROMISED
    scene.leases = {voter.peer_id: each for voter, each in shown.items()}
    scene.tick(pass_seconds=60.0)
    assert (scene.machine.phase is Phase.PROMISED) == waits
