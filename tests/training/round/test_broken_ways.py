"""Two peers that never reach each other, while both reach everybody else. So it is behind two
routers; the directory shows both to all. Or one whose messages pass,
and no ring and no transfer with anybody.
"""

import pytest
from simulation import Setting, Swarm

SECONDS = 90.0


def parts_of(swarm: Swarm, name: str, before: int) -> int:
    """In how many commits after round `before` it had a part."""
    peer_id = swarm[name].peer_id
    commits = swarm["A"].chain.commits[before:]
    return sum(
        any(part.peer_id == peer_id and part.sequences for part in commit.value.contributions)
        for commit in commits
    )


def check_agreement(swarm: Swarm) -> None:
    swarm.heal()
    swarm.run_until_agreed(60.0)
    assert swarm.witness.branches == 0


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("seed", [1, 2, 15, 21])
def test_two_that_never_reach_each_other_take_part_all_the_same(seed: int, hidden: bool) -> None:
    """If nobody can dial them, they say so: then the third leads before them, and both are in most
    rounds, but for those that one of them sees sooner to be due. Else one of them goes without."""
    swarm = Swarm(seed, Setting(peers=3, global_batch=24))
    for name in "BC":
        swarm[name].seat.hidden = hidden
    if not hidden:
        swarm.run(10.0)
    swarm.cut("B", "C")
    swarm.run(10.0 * hidden)
    before = swarm["A"].chain.head.round
    swarm.run(SECONDS)
    rounds = swarm["A"].chain.head.round - before
    parts = [parts_of(swarm, name, before) for name in "ABC"]
    assert rounds >= (10 if hidden else 5), swarm.story(100)
    assert min(parts) >= 0.6 * rounds if hidden else parts[1] + parts[2] >= 5
    check_agreement(swarm)


def longest_wait(swarm: Swarm, name: str, seconds: float) -> float:
    """Between two rounds of that peer."""
    began = latest = swarm.agenda.now
    longest, at = 0.0, swarm[name].chain.head.round
    while swarm.agenda.now < began + seconds:
        swarm.run(0.5)
        longest = max(longest, swarm.agenda.now - latest)
        if swarm[name].chain.head.round > at:
            at, latest = swarm[name].chain.head.round, swarm.agenda.now
    return longest


@pytest.mark.parametrize("peers", [3, 5])
def test_one_that_nobody_can_average_with_does_not_hold_up_the_others(peers: int) -> None:
    """Whoever leads when it begins, and if it is itself: its rings break with everybody, and what
    it averages alone nobody can fetch. How long it takes until it is found out is chance."""
    waits = list[float]()
    for seed in range(6):
        swarm = Swarm(seed, Setting(peers=peers, global_batch=2 * peers))
        swarm.run(10.0)
        swarm.narrow("B")
        waits.append(longest_wait(swarm, "A", 60.0))
        assert not swarm["A"].chain.head.branches
        check_agreement(swarm)
    assert sum(waits) / len(waits) <= 13.0, waits
    assert max(waits) <= 30.0, waits
