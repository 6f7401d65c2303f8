"""Two peers that never reach each other, while both reach everybody else. So it is behind two
routers without a relay between them; the directory shows both to all.
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


def swarm_with_a_broken_way(peers: int, seed: int) -> tuple[Swarm, int]:
    """And the round at which it broke, 90 s ago."""
    swarm = Swarm(seed, Setting(peers=peers, global_batch=8 * peers))
    swarm.run(10.0)
    swarm.cut("B", "C")
    before = swarm["A"].chain.head.round
    swarm.run(SECONDS)
    return swarm, before


def check_agreement(swarm: Swarm) -> None:
    swarm.heal()
    swarm.run_until_agreed(60.0)
    assert swarm.witness.branches == 0


@pytest.mark.parametrize("seed", [1, 2, 15, 21])
def test_of_three_one_of_the_two_goes_without(seed: int) -> None:
    swarm, before = swarm_with_a_broken_way(3, seed)
    assert swarm["A"].chain.head.round - before >= 5, swarm.story(100)
    assert parts_of(swarm, "B", before) + parts_of(swarm, "C", before) >= 5
    check_agreement(swarm)


@pytest.mark.parametrize("peers", [4, 5])
def test_of_more_both_take_part_when_they_are_no_neighbours(peers: int) -> None:
    """Who leads is dealt, and who leads decides whom it can ask: so over several histories."""
    rounds, parts = 0, {"B": 0, "C": 0}
    for seed in (1, 2, 3):
        swarm, before = swarm_with_a_broken_way(peers, seed)
        mine = swarm["A"].chain.head.round - before
        assert mine >= 5, swarm.story(100)
        rounds += mine
        for name in parts:
            parts[name] += parts_of(swarm, name, before)
        check_agreement(swarm)
    assert min(parts.values()) >= rounds / 3, (parts, rounds)
