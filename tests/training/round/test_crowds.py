"""A crowd of identities that promise work and then break the exchange that they are in."""

from collections.abc import Callable

from scene import MATE, ME, Scene, promise, strangers
from simulated_peer import CarryOut
from simulation import begun

from atom.swarm.chain.commit import Voter
from atom.swarm.chain.messages import Prepare, Promise
from atom.training.round.events import Action, ExchangeFailed, Send, StartExchange
from atom.training.round.faults import FIRST_SUSPENSION_S

KNOWN = {ME.peer_id, MATE.peer_id}


def crowded(count: int) -> tuple[Scene, list[Voter]]:
    """Return a scene in which strangers show leases with counts, and the mate's exchanges fail."""
    scene, crowd = Scene(), list(strangers(count).values())
    scene.mate_reports = False
    scene.show([MATE], scene.mate_counts)
    scene.show(crowd, 4)
    return scene, crowd


def next_exchange(scene: Scene, crowd: list[Voter]) -> StartExchange:
    """Play until the machine is in another exchange; each stranger promises at once."""
    calls, rings = len(scene.sent(Prepare)), len(scene.done(StartExchange))
    for _ in range(600):
        if len(scene.sent(Prepare)) > calls:
            calls, ballot = len(scene.sent(Prepare)), scene.sent(Prepare)[-1].ballot
            for stranger in crowd:
                scene.hear(promise(ballot, 4, voter=stranger), stranger)
        scene.play(0.1)
        if len(scene.done(StartExchange)) > rings:
            return scene.done(StartExchange)[-1]
    raise AssertionError(f"no exchange in 60 s: {scene.reports}")


def breaks(scene: Scene, start: StartExchange, suspect: str) -> None:
    scene.tell(ExchangeFailed(start.ballot, suspect, "timeout"))
    scene.play(1.0)


def members_of(start: StartExchange) -> set[str]:
    return {member.peer_id for member in start.members}


def test_a_crowd_breaks_one_exchange_and_not_the_next() -> None:
    scene, crowd = crowded(6)
    first = next_exchange(scene, crowd)
    assert members_of(first) == KNOWN | {stranger.peer_id for stranger in crowd}
    breaks(scene, first, crowd[0].peer_id)
    assert scene.machine.answered == KNOWN, "no call is made for their work"
    assert members_of(next_exchange(scene, crowd)) == KNOWN


def test_after_a_while_one_newcomer_is_admitted_at_a_time() -> None:
    scene, crowd = crowded(6)
    breaks(scene, next_exchange(scene, crowd), crowd[0].peer_id)
    scene.tick(FIRST_SUSPENSION_S)
    admitted = members_of(next_exchange(scene, crowd)) - KNOWN
    assert len(admitted) == 1


def test_a_known_member_is_not_suspected_while_newcomers_are_in_the_exchange() -> None:
    scene, crowd = crowded(2)
    breaks(scene, next_exchange(scene, crowd), MATE.peer_id)
    assert MATE.peer_id not in scene.machine.excluded


def answers_once() -> Callable[[CarryOut, Action], None]:
    """Return the habit of a stranger that sends one promise and no other."""
    answered = False

    def habit(honest: CarryOut, action: Action) -> None:
        nonlocal answered
        answers = isinstance(action, Send) and isinstance(action.message, Promise)
        if not (answers and answered):
            honest(action)
        answered |= answers

    return habit


def rounds_in_a_minute(newcomers: int) -> int:
    swarm = begun(1, 3, all_trusted=False)
    for number in range(newcomers):
        swarm.agenda.after(2.0 * number, lambda: swarm.join().act_as(answers_once()))
    return swarm.rounds_in(60.0)


def test_a_new_stranger_every_two_seconds_that_answers_once_slows_no_round_for_long() -> None:
    assert rounds_in_a_minute(newcomers=23) >= 0.8 * rounds_in_a_minute(newcomers=0)
