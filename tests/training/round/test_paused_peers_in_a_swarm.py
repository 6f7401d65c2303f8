"""A swarm in which some stand still: nobody waits for their share, and nobody is passed over."""

from simulation import Setting, Swarm
from test_round_scenarios import commits

from atom.swarm.chain.commit import Commit
from atom.swarm.records.lease import LEASE_SECONDS

BATCH, PASS_S = 120, 0.1
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


def test_a_paused_peer_slows_nobody_and_is_counted_on_when_it_is_back() -> None:
    two, three = swarm_of(2), swarm_of(3, paused="C")
    for swarm in (two, three):
        swarm.run(3 * LEASE_SECONDS)
    alone_s, beside_s = seconds_for(two, ROUNDS), seconds_for(three, ROUNDS)
    assert beside_s < 1.3 * alone_s
    assert {workers(three, commit) for commit in commits(three)[-ROUNDS:]} == {"AB"}
    three["C"].paused = False
    seconds_for(three, ROUNDS)
    assert {workers(three, commit) for commit in commits(three)[-ROUNDS // 2 :]} == {"ABC"}
