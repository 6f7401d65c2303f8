"""A quorum shows itself, at the right head, and decides nothing: nobody waits for it for ever."""

from collections.abc import Callable

import pytest
from simulated_peer import Process
from simulation import Setting, Swarm

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, Contribution
from atom.swarm.chain.messages import (
    Accept,
    AcceptedVote,
    Message,
    Nack,
    Prepare,
    Prevote,
    PrevoteAnswer,
    Promise,
    Ring,
)
from atom.training.round.hold_up import HOLD_OUT
from atom.training.round.terms import Patience

GRACE_S = Patience().grace
OVERDUE_S = 2 * HOLD_OUT * GRACE_S
"""By then whoever leads has tried, and given up who failed it."""
VOTERS = Setting(pass_seconds=(0.3,))


def started(seed: int, peers: int) -> tuple[Swarm, list[Process]]:
    swarm = Swarm(seed, Setting(peers=peers, pass_seconds=(0.3,)))
    swarm.run_until_agreed(60.0, 1)
    return swarm, swarm.living


def silence(swarm: Swarm, liars: list[Process], *but_for: type[Message]) -> None:
    """From now on these say nothing but that; their leases are as good as ever."""
    names = {liar.peer_id for liar in liars}
    swarm.network.drop = lambda source, target, message: (
        source in names and not isinstance(message, but_for)
    )


def check_rounds_go_on(swarm: Swarm, honest: list[Process], rounds: int = 3) -> None:
    before = max(process.chain.head.round for process in honest)
    swarm.run(OVERDUE_S)
    after = min(process.chain.head.round for process in honest)
    assert after >= before + rounds, swarm.story(60)
    check_one_chain(honest)


def check_one_chain(processes: list[Process]) -> None:
    behind = min(processes, key=lambda process: process.chain.head.round).chain.head
    assert all(behind in process.chain.heads for process in processes), "one of them steps later"


@pytest.mark.parametrize("still_said", [(), (PrevoteAnswer,), (PrevoteAnswer, Promise)])
def test_a_quorum_of_which_too_many_hold_back_what_they_owe(
    still_said: tuple[type[Message], ...],
) -> None:
    swarm, (one, other, *liars) = started(4, 5)
    silence(swarm, liars, *still_said)
    check_rounds_go_on(swarm, [one, other])
    assert one.chain.head.branches


def test_who_refuses_each_time_is_given_up_as_well() -> None:
    swarm, (one, other, *liars) = started(4, 5)
    names = {liar.peer_id: liar for liar in liars}

    def refuse(source: str, target: str, message: Message) -> bool:
        if target in names and isinstance(message, Prepare | Accept):
            nack = Nack(message.parent, message.ballot, None, Reason.BUSY.value)
            swarm.deliver(names[target].me, source, nack)
        return target in names or source in names

    swarm.network.drop = refuse
    swarm.run(OVERDUE_S)
    check_rounds_go_on(swarm, [one, other])


def test_voters_that_never_reach_each_other_go_on_alone_and_meet_again() -> None:
    swarm, (one, *_) = started(5, 3)
    swarm.cut("A", "B", "C")
    before = one.chain.head.round
    swarm.run(OVERDUE_S)
    assert all(process.chain.head.round > before for process in swarm.living), swarm.story(60)
    swarm.heal()
    swarm.run_until_agreed(60.0)


def test_a_late_round_of_the_quorum_wins() -> None:
    """One of three has given up the two that it cannot reach. Then they decide after all."""
    swarm, (one, *others) = started(6, 3)
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
    """Two of five go on where it cannot see them yet. Those that it sees do not decide."""
    swarm, (one, other, *rest) = started(7, 5)
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
    """It has just come back: it agrees to no branch while both are alive."""
    swarm, (one, other, third) = started(seed, 3)
    pair = {one.peer_id, other.peer_id}
    third.die()
    swarm.network.drop = lambda source, target, message: (
        {source, target} == pair and isinstance(message, AcceptedVote)
    )
    swarm.run(68.0)
    swarm.restart(third.seat.name)
    swarm.run(8.0)
    assert swarm.story(100_000).count("kind=held-up") == 2, swarm.story(60)
    swarm.heal()
    swarm.run_until_agreed(50.0, 1)
    assert swarm.witness.branches == 0


def test_an_owner_who_wants_no_branches_waits() -> None:
    swarm = Swarm(4, Setting(peers=3, pass_seconds=(0.3,), branches=False))
    swarm.run_until_agreed(60.0, 1)
    silence(swarm, swarm.living[1:])
    swarm.run(2 * OVERDUE_S)
    assert swarm.witness.branches == 0


# ---- one liar among enough honest ones


def rounds_beside(act: Callable[[Swarm, Process], None], ring_s: float = 0.5) -> int:
    swarm = Swarm(8, Setting(peers=4, pass_seconds=(0.3,), ring_seconds=(ring_s, ring_s)))
    swarm.run_until_agreed(60.0, 1)
    liar, *honest = swarm.living
    before = honest[0].chain.head.round
    act(swarm, liar)
    swarm.run(120.0)
    assert swarm.witness.branches == 0, swarm.story(60)
    return min(process.chain.head.round for process in honest) - before


def test_a_voter_that_calls_each_attempt_outdone() -> None:
    def act(swarm: Swarm, liar: Process) -> None:
        def outdone(source: str, target: str, message: Message) -> bool:
            if target == liar.peer_id and isinstance(message, Prepare):
                ballot = message.ballot
                higher = Ballot(ballot.attempt + 1, ballot.coordinator, ballot.incarnation)
                nack = Nack(message.parent, ballot, higher, Reason.BALLOT_TOO_LOW.value)
                swarm.deliver(liar.me, source, nack)
            return source == liar.peer_id

        swarm.network.drop = outdone

    assert rounds_beside(act) >= 4


@pytest.mark.parametrize("ring_s", [0.5, 9.0])
def test_a_voter_that_calls_for_promises_without_end(ring_s: float) -> None:
    def act(swarm: Swarm, liar: Process) -> None:
        def call() -> None:
            for process in swarm.living:
                number = process.machine.head.round * 1000 + int(swarm.agenda.now * 10)
                ballot = Ballot(number, liar.peer_id, liar.me.incarnation)
                if process is not liar:
                    swarm.deliver(
                        liar.me, process.peer_id, Prepare(process.chain.head.digest, ballot)
                    )
            swarm.agenda.after(0.5, call)

        call()
        silent = (Prevote, PrevoteAnswer, Promise, Ring, AcceptedVote)
        swarm.network.drop = lambda source, target, message: (
            source == liar.peer_id and isinstance(message, silent)
        )

    assert rounds_beside(act, ring_s) >= 3


def test_a_voter_that_tells_only_one_member_of_each_of_its_rings() -> None:
    """So every member sees a neighbour fail that knows of nothing, again and again."""

    def act(swarm: Swarm, liar: Process) -> None:
        promised = dict[Ballot, dict[str, Promise]]()

        def call() -> None:
            attempt = int(swarm.agenda.now * 1000)
            ballot = Ballot(attempt, liar.peer_id, liar.me.incarnation)
            promised[ballot] = {}
            for process in swarm.living[1:]:
                swarm.deliver(liar.me, process.peer_id, Prepare(process.chain.head.digest, ballot))
            swarm.agenda.after(0.3, lambda: compose(ballot))
            swarm.agenda.after(2.2, call)

        def compose(ballot: Ballot) -> None:
            told = dict(promised[ballot])
            members = tuple(
                Contribution(p.peer_id, p.me.incarnation, told[p.peer_id].sequences, 1.0)
                for p in swarm.living
                if p.peer_id in told
            )
            if len(members) > 1:
                peer_id = members[len(promised) % len(members)].peer_id
                swarm.deliver(liar.me, peer_id, Ring(told[peer_id].parent, ballot, members))

        def note(source: str, target: str, message: Message) -> bool:
            if target == liar.peer_id and isinstance(message, Promise):
                promised.get(message.ballot, {}).setdefault(source, message)
            return source == liar.peer_id and isinstance(message, Prepare | Ring | AcceptedVote)

        swarm.network.drop = note
        call()

    assert rounds_beside(act) >= 4
