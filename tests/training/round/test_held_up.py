"""A quorum shows itself, at the right head, and decides nothing: no peer waits for it for ever."""

import pytest
from simulated_peer import Process
from simulation import Swarm, begun

from atom.swarm.chain.messages import AcceptedVote, Message, PrevoteAnswer, Promise
from atom.training.round.election import HOLD_OUT
from atom.training.round.round_state import RoundPatience

GRACE_S = RoundPatience().grace
OVERDUE_S = 2 * HOLD_OUT * GRACE_S
"""Time by which each leader has tried, and given up the peers that failed it."""


def started(seed: int, peers: int, **setting: bool) -> tuple[Swarm, list[Process]]:
    swarm = begun(seed, peers, pass_seconds=(0.3,), **setting)
    return swarm, swarm.living


def silence(swarm: Swarm, liars: list[Process], *but_for: type[Message]) -> None:
    """Drop all other messages of these peers from now on; their leases are as good as ever."""
    names = {liar.peer_id for liar in liars}
    swarm.network.drop = lambda source, target, message: (
        source in names and not isinstance(message, but_for)
    )


def check_one_chain(processes: list[Process]) -> None:
    behind = min(processes, key=lambda process: process.chain.head.round).chain.head
    assert all(behind in process.chain.heads for process in processes), "one of them steps later"


@pytest.mark.parametrize("still_said", [(), (PrevoteAnswer,), (PrevoteAnswer, Promise)])
def test_a_quorum_of_which_too_many_hold_back_what_they_owe(
    still_said: tuple[type[Message], ...],
) -> None:
    swarm, (one, other, *liars) = started(4, 5)
    silence(swarm, liars, *still_said)
    before = max(process.chain.head.round for process in (one, other))
    swarm.run(OVERDUE_S)
    assert min(one.chain.head.round, other.chain.head.round) >= before + 3, swarm.story(60)
    check_one_chain([one, other])
    assert one.chain.head.branches


@pytest.mark.parametrize("seed", [0, 6])
def test_a_late_round_of_the_quorum_wins(seed: int) -> None:
    """One of three peers has given up two unreachable peers. Then these decide after all: the
    counted work that this peer does not bring is no reason to give each other up as well."""
    swarm, (one, *others) = started(seed, 3)
    for process in others:
        process.paused = True
    swarm.run(5.0)
    swarm.cut("A", "BC")
    swarm.run(OVERDUE_S)
    alone = one.chain.head
    assert alone.branches, swarm.story(60)
    for process in others:
        process.paused = False
    swarm.run(30.0)
    late = others[0].chain.head
    assert late.round < alone.round
    assert not late.branches
    swarm.heal()
    swarm.run_until_agreed(60.0)
    assert late in one.chain.heads
    assert alone not in one.chain.heads


def test_a_stranger_is_not_held_up_by_leases() -> None:
    """Two of five continue where the stranger cannot see them yet. The peers that the stranger sees
    do not decide."""
    swarm, (one, other, *rest) = started(7, 5, all_trusted=False)
    swarm.cut("AB", "CDE")
    swarm.hide("AB", "CDE")
    silence(swarm, rest)
    joiner = swarm.join()
    swarm.run(40.0)
    assert one.chain.head.branches
    swarm.network.blocked.clear()
    swarm.directory.hidden.clear()
    branched = one.chain.head.round
    swarm.run(2 * OVERDUE_S)
    check_one_chain([one, other, joiner])
    assert joiner.chain.head.round > branched, swarm.story(60)


@pytest.mark.parametrize("seed", [0, 2, 8])
def test_who_gave_each_other_up_meet_again_though_a_third_knows_better(seed: int) -> None:
    """The third peer has just come back: it agrees to no branch while both are alive."""
    swarm, (one, other, third) = started(seed, 3)
    pair = {one.peer_id, other.peer_id}
    third.die()
    swarm.network.drop = lambda source, target, message: (
        {source, target} == pair and isinstance(message, AcceptedVote)
    )
    swarm.run(65.0)
    swarm.restart(third.seat.name)
    swarm.run(8.0)
    assert swarm.story(100_000).count("kind=held-up") == 2, swarm.story(60)
    swarm.heal()
    swarm.run_until_agreed(50.0, 1)
    assert swarm.witness.branches == 0


@pytest.mark.parametrize("seen", [True, False])
def test_an_owner_who_wants_no_branches_waits(seen: bool) -> None:
    swarm, _ = started(4, 3, branches=False)
    swarm.cut("A", "B", "C")
    if not seen:
        swarm.hide("A", "B", "C")
    swarm.run(2 * OVERDUE_S)
    assert swarm.witness.branches == 0
    swarm.heal()
    swarm.run_until_agreed(30.0)
