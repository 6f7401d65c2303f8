"""Two peers that never reach each other, while both reach everybody else. So it is behind two
routers; the directory shows both to all. Or one whose messages pass,
and no ring and no transfer with anybody.
"""

import pytest
from simulation import Setting, Swarm

from atom.swarm.chain.commit import Ballot
from atom.swarm.chain.messages import Message, Ring
from atom.training.round import Patience

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


@pytest.mark.parametrize("seed", range(4))
def test_two_that_nobody_can_dial_take_part_in_most_rounds(seed: int) -> None:
    """The third leads before them, but where one of them sees earlier that a round is due."""
    swarm = Swarm(seed, Setting(peers=3, global_batch=24))
    for name in "BC":
        swarm[name].seat.hidden = True
    swarm.cut("B", "C")
    swarm.run(10.0)
    before = swarm["A"].chain.head.round
    swarm.run(SECONDS)
    rounds = swarm["A"].chain.head.round - before
    assert rounds >= 10, swarm.story(100)
    assert min(parts_of(swarm, name, before) for name in "ABC") >= 0.6 * rounds
    check_agreement(swarm)


@pytest.mark.parametrize("seed", [1, 2, 15, 21])
def test_of_three_one_of_the_two_goes_without(seed: int) -> None:
    swarm = Swarm(seed, Setting(peers=3, global_batch=24))
    swarm.run(10.0)
    swarm.cut("B", "C")
    before = swarm["A"].chain.head.round
    swarm.run(SECONDS)
    assert swarm["A"].chain.head.round - before >= 5, swarm.story(100)
    assert parts_of(swarm, "B", before) + parts_of(swarm, "C", before) >= 5
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
    for seed in range(10):
        swarm = Swarm(seed, Setting(peers=peers, global_batch=2 * peers))
        swarm.run(10.0)
        swarm.narrow("B")
        waits.append(longest_wait(swarm, "A", 60.0))
        assert not swarm["A"].chain.head.branches
        check_agreement(swarm)
    assert sum(waits) / len(waits) <= 13.0, waits
    assert max(waits) <= 30.0, waits


def test_of_paused_voters_as_many_average_as_a_quorum_needs() -> None:
    """Nobody's vote then waits for a fetch, and the first attempt decides."""
    swarm = Swarm(10, Setting(peers=5, global_batch=10))
    swarm.run(10.0)
    for name in "CDE":
        swarm[name].paused = True
    swarm.run(30.0)
    before = len(swarm["A"].chain.commits)
    swarm.run(60.0)
    commits = swarm["A"].chain.commits[before:]
    assert len(commits) >= 3, swarm.story(100)
    assert {len(commit.value.contributions) for commit in commits} == {3}
    assert all(commit.ballot == commit.value.origin for commit in commits)


@pytest.mark.parametrize("seed", [0, 4])
def test_who_is_left_when_others_died_in_its_rings_waits_for_the_dead_and_for_nobody_else(
    seed: int,
) -> None:
    """Each ring broke between it and another one. But there is nobody whom it could let lead."""
    swarm = Swarm(seed, Setting(global_batch=6))
    swarm.run(10.0)
    rings = list[Ballot]()

    def fatal(source: str, target: str, message: Message) -> bool:
        process = swarm.process_of(target)
        if isinstance(message, Ring) and message.ballot not in rings and process is not None:
            rings.append(message.ballot)
            process.die()
        return False

    swarm.network.drop = fatal
    while len(swarm.living) > 1:
        swarm.run(0.1)
    assert rings[0].coordinator == rings[1].coordinator, "or another seed"
    (left,) = swarm.living
    before = left.chain.head.round
    swarm.run(Patience().grace + 4.0)
    assert left.chain.head.round > before, swarm.story(60)
