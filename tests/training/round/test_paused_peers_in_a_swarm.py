"""A swarm in which some stand still: nobody waits for their share, and nobody is passed over."""

from simulation import Setting, Swarm
from test_round_scenarios import commits

from atom.swarm.chain.commit import Commit
from atom.training.membership_view import COUNTS_ON_S

BATCH, SHARE, PASS_S = 120, 40, 0.1
"""A share of three is worked off within a second; news come every 0.9 s."""
ROUNDS = 12


def swarm_of(peers: int, paused: str = "") -> Swarm:
    swarm = Swarm(11, Setting(peers=peers, global_batch=BATCH, pass_seconds=(PASS_S,)))
    for name in paused:
        swarm[name].paused = True
    return swarm


def seconds_for(swarm: Swarm, rounds: int) -> float:
    goal, began = swarm.living[0].chain.head.round + rounds, swarm.agenda.now
    while not swarm.agreed(goal):
        assert swarm.agenda.now < began + 20.0 * rounds, swarm.story()
        swarm.run(0.1)
    return swarm.agenda.now - began


def workers(swarm: Swarm, commit: Commit) -> str:
    """Names of those that counted anything for this round."""
    worked = [part.peer_id for part in commit.value.contributions if part.sequences]
    return "".join(seat.name for seat in swarm.seats if seat.peer_id in worked)


def test_resumed_one_after_the_other_all_do_much_of_the_first_round() -> None:
    swarm = swarm_of(3, paused="ABC")
    swarm.run(10 * COUNTS_ON_S)
    for name in "ABC":
        swarm[name].paused = False
        swarm.run(COUNTS_ON_S / 3)
    swarm.run_until_agreed(60.0, 1)
    parts = [part.sequences for part in commits(swarm)[0].value.contributions]
    assert min(parts) >= SHARE / 2, swarm.story()


def test_a_paused_peer_slows_nobody_and_is_counted_on_when_it_is_back() -> None:
    two, three = swarm_of(2), swarm_of(3, paused="C")
    for swarm in (two, three):
        swarm.run(3 * COUNTS_ON_S)
    alone_s, beside_s = seconds_for(two, ROUNDS), seconds_for(three, ROUNDS)
    assert beside_s < 1.3 * alone_s
    assert {workers(three, commit) for commit in commits(three)[-ROUNDS:]} == {"AB"}
    three["C"].paused = False
    seconds_for(three, ROUNDS)
    assert {workers(three, commit) for commit in commits(three)[-ROUNDS // 2 :]} == {"ABC"}
