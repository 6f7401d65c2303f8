"""Two peers that cannot connect to each other, while both reach all other peers, like peers behind
two routers: the directory shows both to all. Or one peer whose messages pass, but no exchange and
no transfer with any other peer.
"""

import pytest
from simulation import Setting, Swarm

SECONDS = 90.0


def check_agreement(swarm: Swarm) -> None:
    swarm.heal()
    swarm.run_until_agreed(60.0)
    assert swarm.witness.branches == 0


def parts_of_two_without_a_connection(seed: int, hidden: bool) -> tuple[int, list[int]]:
    """Return the rounds of a swarm in which B and C cannot connect, and the parts of each peer."""
    swarm = Swarm(seed, Setting(peers=3, global_batch=24))
    for name in "BC":
        swarm[name].seat.hidden = hidden
    if not hidden:
        swarm.run(10.0)
    swarm.cut("B", "C")
    swarm.run(10.0 * hidden)
    before = swarm["A"].chain.head.round
    rounds = swarm.rounds_in(SECONDS)
    commits = swarm["A"].chain.commits[before:]
    workers = [{p.peer_id for p in c.value.contributions if p.sequences} for c in commits]
    parts = [sum(swarm[name].peer_id in each for each in workers) for name in "ABC"]
    assert rounds >= (10 if hidden else 5), swarm.story(100)
    check_agreement(swarm)
    return rounds, parts


SEEDS = (1, 15)


def test_two_hidden_peers_are_both_in_most_rounds() -> None:
    """The leases of both say that no peer can dial them. So the third peer leads before them, apart
    from rounds that one of the two sees sooner to be due."""
    found = [parts_of_two_without_a_connection(seed, hidden=True) for seed in SEEDS]
    assert sum(min(parts) for _, parts in found) >= 0.7 * sum(rounds for rounds, _ in found)
    assert all(min(parts) >= 0.5 * rounds for rounds, parts in found), found


@pytest.mark.parametrize("seed", SEEDS)
def test_one_of_two_that_cannot_connect_takes_part(seed: int) -> None:
    _, parts = parts_of_two_without_a_connection(seed, hidden=False)
    assert parts[1] + parts[2] >= 5


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
    """The peer's exchanges break with all others, and no peer can fetch a result that it averaged
    alone. So it is left out, no matter which peer leads. The time until then is chance: with five
    peers, all four others are needed."""
    waits = list[float]()
    for seed in range(3):
        swarm = Swarm(seed, Setting(peers=peers, global_batch=2 * peers))
        swarm.run(10.0)
        swarm.narrow("B")
        waits.append(longest_wait(swarm, "A", 60.0))
        assert not swarm["A"].chain.head.branches
        check_agreement(swarm)
    assert sum(waits) / len(waits) <= 18.0, waits
    assert max(waits) <= 30.0, waits
