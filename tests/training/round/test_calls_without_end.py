"""A voter that calls for attempts without end, or never ends its attempts: the other peers' rounds
continue. Real machines, virtual time."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from simulated_peer import Process, leads_nothing
from simulation import Swarm, begun

from atom.base.errors import Reason
from atom.swarm.chain.commit import Ballot
from atom.swarm.chain.messages import Abort, Accept, Message, Prepare, Prevote
from atom.swarm.chain.succession import Evidence

LEARNING_S, SECONDS = 300.0, 300.0
"""Time in which the honest voters learn which caller wastes theirs, and time that is measured."""
AIM = 0.8


@dataclass(frozen=True)
class Attack:
    """Habits of a voter that calls. Times in seconds."""

    every: float
    asks_only: bool = False
    """True if the voter asks whether a call is due, and never calls."""
    aborts_after: float | None = None
    values: int = 0
    """Nonsensical values for each call, one each second."""
    one_by_one: bool = False
    """True if each call goes to one peer only, and the next call to the next peer."""
    leads: bool = False
    """True if the voter leads proper rounds in between."""
    restarts: bool = False
    """True if the voter comes back as a new incarnation every minute."""


ATTACKS = {
    "calls every three seconds": Attack(3.0),
    "calls all the time": Attack(0.5),
    "lets each call time out": Attack(10.0),
    "asks only": Attack(0.5, asks_only=True),
    "aborts at once": Attack(0.5, aborts_after=0.0),
    "aborts late": Attack(0.5, aborts_after=0.9),
    "calls one peer at a time": Attack(0.5, one_by_one=True),
    "leads rounds and calls": Attack(3.0, leads=True),
    "leads rounds and aborts": Attack(1.0, aborts_after=0.0, leads=True),
    "sends values for one call": Attack(10.0, values=20),
    "restarts": Attack(3.0, restarts=True),
}


class Caller:
    """Simulated peer that takes part in rounds and calls for attempts of its own."""

    def __init__(self, swarm: Swarm, process: Process, attack: Attack) -> None:
        self._swarm, self._name, self._attack = swarm, process.seat.name, attack
        self._calls = 0
        self._begin(process)
        self._call()
        if attack.restarts:
            self._later(60.0, self._restart)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._swarm.agenda.after(seconds, act)

    def _begin(self, process: Process) -> None:
        if not self._attack.leads:
            process.act_as(leads_nothing)

    def _restart(self) -> None:
        self._swarm[self._name].die()
        self._begin(self._swarm.restart(self._name))
        self._later(60.0, self._restart)

    def _call(self) -> None:
        self._later(self._attack.every, self._call)
        me, machines = self._swarm[self._name], [each.machine for each in self._swarm.living]
        attempt = 1 + max(machine._context.highest_attempt for machine in machines)
        me.machine._context.highest_attempt = attempt
        head, ballot = me.chain.head.digest, Ballot(attempt, me.peer_id, me.me.incarnation)
        others = [each.peer_id for each in self._swarm.living if each is not me]
        self._calls += 1
        targets = [others[self._calls % len(others)]] if self._attack.one_by_one else others
        self._send(targets, Prevote(head) if self._attack.asks_only else Prepare(head, ballot))
        if (seconds := self._attack.aborts_after) is not None:
            abort = Abort(head, ballot, Reason.EARLY)
            self._later(seconds, functools.partial(self._send, targets, abort))
        value = me.chain.commits[-1].value
        for second in range(self._attack.values):
            accept = Accept(head, ballot, value, Evidence(), ballot)
            self._later(second, functools.partial(self._send, targets, accept))

    def _send(self, targets: Sequence[str], message: Message) -> None:
        me = self._swarm[self._name].me
        for target in targets:
            deliver = functools.partial(self._swarm.deliver, me, target, message)
            self._swarm.network.send((me.peer_id, target), message, deliver, lambda: None)


def rounds_beside(peers: int, *attacks: Attack) -> int:
    """Return the rounds that a swarm decides while its last voters attack."""
    swarm = begun(1, peers, global_batch=4 * peers)
    for process, attack in zip(reversed(swarm.living), attacks, strict=False):
        Caller(swarm, process, attack)
    swarm.run(LEARNING_S)
    return swarm.rounds_in(SECONDS)


calm = functools.cache(rounds_beside)


CASES = [(3, habit) for habit in ATTACKS]
CASES += [(peers, "calls every three seconds") for peers in (4, 5)]


@pytest.mark.parametrize(("peers", "habit"), CASES)
def test_rounds_go_on_beside_a_voter_that_calls_without_end(peers: int, habit: str) -> None:
    assert rounds_beside(peers, ATTACKS[habit]) >= AIM * calm(peers)


def test_most_rounds_go_on_beside_two_of_five_that_call_without_end() -> None:
    habit = ATTACKS["calls all the time"]
    assert rounds_beside(5, habit, habit) >= 0.6 * calm(5)


def test_the_first_minutes_of_an_attack_cost_a_few_rounds_only() -> None:
    swarm = begun(2, 4, global_batch=16)
    Caller(swarm, swarm["D"], ATTACKS["calls every three seconds"])
    assert swarm.rounds_in(LEARNING_S) >= 0.5 * LEARNING_S / 4.0


def test_a_stranger_that_calls_holds_no_peer() -> None:
    swarm = begun(3, 3, all_trusted=False)
    stranger = swarm.join()
    swarm.run_until(lambda: bool(stranger.chain.commits), 60.0)
    Caller(swarm, stranger, ATTACKS["calls all the time"])
    assert swarm.rounds_in(60.0) >= 10
