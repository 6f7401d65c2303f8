"""The traces that broke simpler protocols, and the deaths that a round has to outlive.

`Witness`, `Chain` and `Process` check the promises on the way (one ordinary commit per parent,
equal heads equal states, no work counted twice, no ring over moving gradients); these tests say
what happens, and that it goes on.
"""

import pytest
import simulated_parts
from simulation import Setting, Swarm, begun

from atom.swarm.chain import messages
from atom.swarm.chain.commit import MAX_VOTERS, Commit

GRACE_SECONDS = 12.0


def tie_breaker(swarm: Swarm) -> str:
    first = swarm.living[0].machine.head.voters[0]
    return next(seat.name for seat in swarm.seats if seat.peer_id == first.peer_id)


def others(swarm: Swarm, *names: str) -> str:
    return "".join(seat.name for seat in swarm.seats if seat.name not in names)


def commits(swarm: Swarm) -> list[Commit]:
    return list(swarm.living[0].chain.commits)


# ---- the plain case


def test_the_run_ends_with_its_last_round() -> None:
    swarm = Swarm(5, Setting(last_round=3))
    swarm.run(60.0)
    assert {p.chain.head.round for p in swarm.living} == {3}
    assert all(process.machine.finished for process in swarm.living)


@pytest.mark.parametrize(
    ("peers", "places", "few_voters", "overlaps"),
    # The equal shares of 24 peers make a batch together, and those of 11 members make less.
    [(24, 11, True, False), (24, 11, True, True), (6, 4, False, False), (100, 64, True, False)],
)
def test_rounds_go_on_with_more_voters_or_peers_than_places_in_an_exchange(
    peers: int, places: int, few_voters: bool, overlaps: bool
) -> None:
    swarm = begun(
        5, peers, 2,
        all_voters=not few_voters, most_members=places, global_batch=4 * peers,
        pass_seconds=(1.0, 0.3, 2.5), overlaps=overlaps,
    )  # fmt: skip
    assert max(len(commit.value.contributions) for commit in commits(swarm)) == places
    most = max(commit.value.sequences for commit in commits(swarm))
    assert most <= 3 * swarm.terms.global_batch, "no peer trains the whole batch alone"


# ---- partitions: a local opinion of who is alive is no electorate


@pytest.mark.parametrize("seed", range(5))
def test_a_commit_that_a_frozen_peer_keeps_to_itself_holds_nobody_up(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two sleeps while the other, which breaks ties, commits alone; it wakes up to that
    commit, and the other sleeps. However long it asks for the result: it goes on after the grace
    time, as if it had not heard of it."""
    monkeypatch.setattr(simulated_parts, "SILENT_HOLDER_SECONDS", (1000.0, 1000.0))
    swarm = begun(seed, 2)
    first = swarm[tie_breaker(swarm)]
    second = swarm[others(swarm, first.seat.name)]
    second.suspend()
    before = first.chain.head.round
    swarm.run_until(lambda: first.chain.head.round > before, 60.0)
    first.suspend()
    second.resume()
    swarm.run_until(lambda: second.chain.head.round > before, 60.0)
    first.resume()
    swarm.run_until_agreed(30.0)


def test_a_newcomer_without_a_voter_in_sight_says_for_whom_it_waits() -> None:
    swarm = Swarm(5, Setting(1, all_trusted=False))
    founder, newcomer = swarm["A"], swarm.join()
    founder.die()
    swarm.run(60.0)
    assert newcomer.chain.head.round == 0
    assert [report.kind for report in newcomer.told].count("no-quorum") == 1
    assert newcomer.machine.waiting_for == {founder.peer_id}


# ---- deaths


@pytest.mark.parametrize("survivor_breaks_ties", [True, False])
def test_of_two_peers_one_dies_silently(survivor_breaks_ties: bool) -> None:
    swarm = begun(5, 2, global_batch=8)
    first = tie_breaker(swarm)
    victim = others(swarm, first) if survivor_breaks_ties else first
    swarm[victim].die()
    seconds = swarm.run_until_agreed(40.0, 1)
    assert (swarm.witness.branches == 0) is survivor_breaks_ties
    assert (seconds < GRACE_SECONDS) is survivor_breaks_ties


def test_all_but_one_say_goodbye_one_after_another() -> None:
    swarm = begun(5, 4)
    for name in "ABC":
        leaver = swarm[name]
        leaver.leave()
        swarm.run_until(lambda leaver=leaver: not leaver.alive)
    swarm.run_until_agreed(15.0)
    assert swarm.witness.branches == 0


def test_a_peer_that_arrives_as_the_last_one_goes_can_go_on() -> None:
    """The only peer that may decide leaves, and another one has just arrived: the leaver stays for
    one round with the newcomer's work. The newcomer has no tenure, hence no vote, but it was in
    the last round: it opens a branch. Its promises before that are lost."""
    swarm = begun(3, 1, 2, all_trusted=False, pass_seconds=(0.3,))
    founder, joiner = swarm["A"], swarm.join()
    swarm.network.drop = lambda source, target, message: (
        source == joiner.peer_id and isinstance(message, messages.Promise)
    )
    founder.leave()
    swarm.run(12.0)
    assert founder.alive
    before = founder.chain.head
    assert joiner.chain.head.digest == before.digest
    swarm.heal()
    swarm.run(25.0)
    assert swarm.living == [joiner]
    assert joiner.chain.head.round > before.round + 2, swarm.story(60)
    assert swarm.witness.branches == 1


# ---- more peers than voters: those without a vote do most of the work


def test_a_branch_gathers_the_work_of_all() -> None:
    """Nine survivors vote. Alone they train no whole batch: the others count on each other."""
    swarm = Swarm(3, Setting(24, all_voters=False, global_batch=192))
    while len(swarm["A"].machine.head.voters) < MAX_VOTERS:
        swarm.run_until_agreed(30.0, 1)
    voters = {voter.peer_id for voter in swarm["A"].machine.head.voters[:5]}
    for process in [process for process in swarm.living if process.peer_id in voters]:
        process.die()
    swarm.run_until_agreed(40.0)
    assert swarm.witness.branches >= 1
    branch = next(c for c in swarm.living[0].chain.commits if c.survivors)
    assert len(branch.value.contributions) == 19
