"""Rounds where the optimizer's state is in parts: each has a holder in every round, and a swarm
that lost one goes on."""

from dataclasses import replace

import pytest
from histories import drawn
from simulated_ring import Trouble
from simulation import Setting, Swarm

from atom.daemon.peer.lifecycle import LEAVE_S

PARTS = 8
ROOM = Setting(peers=4, parts=PARTS, global_batch=16, pass_seconds=(0.3,), ring_seconds=(0.1, 0.3))


def settled(setting: Setting = ROOM, seed: int = 3) -> Swarm:
    """Each holds its share, and no more."""
    swarm = Swarm(seed, setting)
    swarm.run(40.0)
    shares = [len(process.held.parts) for process in swarm.living]
    assert sum(shares) == 2 * PARTS
    assert max(shares) - min(shares) <= 1
    return swarm


def test_each_part_comes_to_have_two_holders() -> None:
    swarm = settled()
    assert swarm.witness.renewed == 0
    swarm.join()
    swarm.run(40.0)
    assert sorted(len(process.held.parts) for process in swarm.living) == [3, 3, 3, 3, 4]
    assert swarm.witness.renewed == 0


def test_a_copy_takes_over_and_another_is_made() -> None:
    swarm = settled()
    for name in "AB":
        rounds = swarm.witness.rounds
        swarm[name].die()
        swarm.run(40.0)
        assert swarm.witness.rounds > rounds + 5
        assert sum(len(process.held.parts) for process in swarm.living) == 2 * PARTS
    assert swarm.witness.renewed == 0


def test_both_holders_of_a_part_leave_at_once_and_it_stays() -> None:
    """Not before somebody else has it, which takes a few rounds."""
    swarm = settled()
    part, rounds = min(swarm["A"].held.parts), swarm.witness.rounds
    for process in [p for p in swarm.living if part in p.held.parts]:
        process.leave()
    swarm.run(LEAVE_S / 2)
    assert [len(process.held.parts) for process in swarm.living] == [PARTS, PARTS]
    assert swarm.witness.rounds > rounds + 5
    assert swarm.witness.renewed == 0


def both_die(swarm: Swarm) -> float:
    """The holders of one part; when."""
    part = min(swarm["A"].held.parts)
    for process in [p for p in swarm.living if part in p.held.parts]:
        process.die()
    assert len(swarm.living) == 2
    return swarm.agenda.now


def test_a_part_that_nobody_has_begins_anew_after_the_grace_time() -> None:
    swarm = settled()
    died_at, rounds = both_die(swarm), swarm.witness.rounds
    grace_s = swarm.terms.patience.grace
    swarm.run(grace_s - 1.0)
    assert swarm.witness.rounds == rounds
    swarm.run(60.0)
    assert swarm.witness.renewed == 1
    assert swarm.witness.rounds > rounds + 5
    assert died_at < swarm.agenda.now
    told = [r for process in swarm.living for r in process.told if r.kind == "attempt-ended"]
    assert any(r.fields["reason"] == "no-holder" and r.fields["parts"] for r in told)


def test_what_begins_anew_is_held_by_those_that_have_room_for_it() -> None:
    """And if nobody has, the rounds wait for somebody who has."""
    for room, goes_on in ((5, True), (3, False)):
        swarm = Swarm(3, replace(ROOM, room=(8, room, room, room)))
        swarm.run(40.0)
        part = min(swarm["A"].held.parts)
        for process in [p for p in swarm.living if part in p.held.parts]:
            process.die()
        rounds = swarm.witness.rounds
        for _ in range(600):
            swarm.run(0.1)
            assert all(len(process.held.parts) <= room for process in swarm.living)
        assert (swarm.witness.rounds > rounds + 5) == goes_on
        swarm.join()
        swarm.run(60.0)
        assert swarm.witness.rounds > rounds + 5
        assert swarm.witness.renewed == 1


def test_it_never_does_where_the_run_pauses_and_a_holder_that_comes_back_ends_that() -> None:
    swarm = settled(replace(ROOM, branches=False, peers=5, global_batch=20), 4)
    part = min(swarm["A"].held.parts)
    gone = [process for process in swarm.living if part in process.held.parts]
    last = gone[0].seat
    swarm.run_until(lambda: last.disk.head == gone[0].chain.head == gone[0].machine.head)
    for process in gone:
        process.die()
    swarm.run(120.0)
    rounds = swarm.witness.rounds
    swarm.run(30.0)
    assert swarm.witness.rounds == rounds
    swarm.restart(last.name)
    swarm.run(40.0)
    assert swarm.witness.rounds > rounds
    assert swarm.witness.renewed == 0


def alone_with_a_part() -> tuple[Swarm, str]:
    """Who holds some part, whose other holder died; one more than a quorum is left."""
    swarm = settled(replace(ROOM, global_batch=12))
    part = min(swarm["A"].held.parts)
    gone, last = [process for process in swarm.living if part in process.held.parts]
    gone.die()
    return swarm, last.seat.name


def test_who_alone_holds_a_part_is_asked_again_after_an_exchange_that_it_broke() -> None:
    swarm, last = alone_with_a_part()
    swarm.rings.troubled[swarm[last].peer_id] = Trouble.FROZEN
    swarm.run(6.0)
    swarm.rings.troubled.clear()
    rounds = swarm.witness.rounds
    swarm.run(30.0)
    assert swarm.witness.rounds > rounds + 5
    assert swarm.witness.renewed == 0


def test_a_holder_that_shows_itself_and_is_late_is_waited_for_longer() -> None:
    """And not for ever."""
    for seconds, renewed in ((30.0, False), (90.0, True)):
        swarm, last = alone_with_a_part()
        swarm.cut(last, "ABCD".replace(last, ""))
        swarm.run(seconds)
        swarm.mend()
        rounds = swarm.witness.rounds
        swarm.run(30.0)
        assert swarm.witness.rounds > rounds + 5
        assert bool(swarm.witness.renewed) == renewed


@pytest.mark.timeout(240)
def test_faults_of_every_kind() -> None:
    committed = renewed = 0
    for seed in range(40):
        history = drawn(seed)
        swarm = replace(history, setting=replace(history.setting, parts=PARTS)).play()
        committed, renewed = committed + swarm.witness.rounds, renewed + swarm.witness.renewed
    assert committed > 400
    assert renewed > 0, "faults so mild prove little"
