"""A peer that is gone, but whose lease still shows what it counted: the others do its work."""

from collections.abc import Callable

import pytest
from simulated_key import identity
from simulation import Setting, Swarm

from atom.swarm.chain.commit import Ballot, Head, Voter
from atom.swarm.chain.messages import Abort, Prepare, Prevote, PrevoteAnswer, Promise
from atom.swarm.records.lease import Lease, PeerState
from atom.training.round import RoundMachine, Terms
from atom.training.round.batch_policy import GlobalBatch
from atom.training.round.events import (
    Action,
    Freeze,
    Frozen,
    Phase,
    Received,
    Report,
    Send,
    StartRing,
    Tick,
    Unreachable,
    View,
)

US, THEM, NOBODY = (identity(number) for number in (2, 1, 3))  # the mate leads first
ME = Voter(US.peer_id, b"m" * 16)
MATE, GONE = Voter(THEM.peer_id, b"a" * 16), Voter(NOBODY.peer_id, b"g" * 16)
VOTERS = tuple(sorted([ME, MATE, GONE]))
HEAD = Head(b"h" * 32, 7, 700, 700, VOTERS, tuple(v.peer_id for v in VOTERS))
STATE = b"d" * 32


def lease(voter: Voter, sequences: int, serial: int = 1) -> Lease:
    return Lease(
        peer_id=voter.peer_id,
        incarnation=voter.incarnation,
        serial=serial,
        issued_at=0.0,
        state=PeerState.ACCUMULATING,
        head=HEAD.digest,
        round=HEAD.round,
        work=HEAD.work,
        sequences=sequences,
        rounds_joined=0,
        sequences_committed=0,
        sequences_per_s=1.0,
        tokens_per_s=1.0,
        pass_seconds=0.1,
        loss=None,
        state_digest=STATE,
        addresses=(),
    )


class Story:
    """Our machine, with a mate that answers and a third that shows its count and says nothing."""

    def __init__(self) -> None:
        self.now = 0.0
        terms = Terms(GlobalBatch(96))
        self.machine = RoundMachine(ME, HEAD, STATE, terms, US.sign, self.now)
        self.leases = {v.peer_id: lease(v, 32) for v in (MATE, GONE)}
        self.own = 32
        self.reports: list[str] = []
        self.ring: StartRing | None = None
        self.said: list[tuple[str, object]] = []

    def tick(self, seconds: float = 0.1) -> None:
        self.now += seconds
        self.take(self.machine.handle(Tick(View(fresh=self.leases, sequences=self.own)), self.now))

    def until(self, what: str, seconds: float) -> None:
        ends_at = self.now + seconds
        while what not in self.reports and self.ring is None:
            assert self.now < ends_at, f"no {what} in {seconds} s"
            self.tick()

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.said.append((action.to, action.message))
            match action:
                case Send(MATE.peer_id, message):
                    self.answer(message)
                case Freeze(ballot):
                    self.tell(Frozen(ballot, self.own, 1.0))
                case StartRing():
                    self.ring = action
                case Report(kind, fields):
                    self.reports.append(f"{kind} {fields.get('reason', '')}")
                case _:
                    pass

    def answer(self, message: object) -> None:
        match message:
            case Prevote(parent, serial):
                self.hear(PrevoteAnswer(parent, serial, ""))
            case Prepare(parent, ballot, _):
                self.hear(promise(parent, ballot, self.leases[MATE.peer_id].sequences))
            case _:
                pass

    def hear(self, message: PrevoteAnswer | Promise | Prepare | Abort) -> None:
        self.tell(Received(MATE.peer_id, MATE.incarnation, message))

    def tell(self, event: Frozen | Received | Unreachable) -> None:
        self.take(self.machine.handle(event, self.now))

    def counted_on(self) -> set[str]:
        return self.leases.keys() - self.machine.status.aside


def promise(parent: bytes, ballot: Ballot, sequences: int) -> Promise:
    return Promise(parent, ballot, None, None, sequences, 1.0, STATE, False)


def test_the_rest_work_for_a_silent_peer_long_before_its_lease_lapses() -> None:
    story = Story()
    assert story.counted_on() == {MATE.peer_id, GONE.peer_id}
    story.until("attempt-ended timeout", 8.0)
    assert story.counted_on() == {MATE.peer_id}
    story.reports.clear()
    for _ in range(30):
        story.tick()
    assert story.reports == [], "nothing to try while the count of those who answer is too low"
    story.own = 64
    story.until("ring", 6.0)
    assert story.ring is not None
    assert {m.peer_id: m.sequences for m in story.ring.members} == {
        ME.peer_id: 64,
        MATE.peer_id: 32,
    }


def test_a_late_promise_is_an_answer_all_the_same() -> None:
    """The attempt has ended without it: the next one waits for that peer again."""
    story = Story()
    story.until("attempt-ended timeout", 8.0)
    assert story.counted_on() == {MATE.peer_id}
    [call] = [m for to, m in story.said if to == GONE.peer_id and isinstance(m, Prepare)]
    late = promise(call.parent, call.ballot, 32)
    story.tell(Received(GONE.peer_id, GONE.incarnation, late))
    story.tick()
    assert story.counted_on() == {MATE.peer_id, GONE.peer_id}


def test_who_cannot_be_reached_is_not_counted_on() -> None:
    story = Story()
    story.tick()
    story.tell(Unreachable(GONE.peer_id))
    story.tick()
    assert story.counted_on() == {MATE.peer_id}
    assert story.machine.phase is Phase.ACCUMULATING


def promised_to(coordinator: Voter) -> Story:
    story = Story()
    story.tick()
    story.tell(
        Received(
            coordinator.peer_id,
            coordinator.incarnation,
            Prepare(HEAD.digest, Ballot(1, coordinator.peer_id, coordinator.incarnation)),
        )
    )
    assert story.machine.phase is Phase.PROMISED
    return story


def test_a_coordinator_that_cannot_be_reached_is_not_waited_for() -> None:
    story = promised_to(GONE)
    story.tell(Unreachable(MATE.peer_id))
    assert story.machine.phase is Phase.PROMISED
    story.tell(Unreachable(GONE.peer_id))
    assert story.machine.phase is Phase.ACCUMULATING


def test_a_coordinator_whose_lease_lapses_is_not_waited_for() -> None:
    story = promised_to(GONE)
    story.tick()
    del story.leases[GONE.peer_id]
    mate = story.leases.pop(MATE.peer_id)
    story.tick()
    assert story.machine.phase is Phase.PROMISED, "nobody's lease is seen: not theirs to explain"
    story.leases[MATE.peer_id] = mate
    story.tick()
    assert story.machine.phase is Phase.ACCUMULATING


def test_a_coordinator_that_was_not_in_sight_is_waited_for_as_any_other() -> None:
    story = promised_to(GONE)
    del story.leases[GONE.peer_id]
    story.tick()
    assert story.machine.phase is Phase.PROMISED


def test_a_new_process_of_a_coordinator_is_not_waited_for() -> None:
    story = promised_to(GONE)
    story.tick()
    story.leases[GONE.peer_id] = lease(Voter(GONE.peer_id, b"n" * 16), 0)
    story.tick()
    assert story.machine.phase is Phase.ACCUMULATING


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("freeze", [False, True], ids=["killed", "frozen"])
def test_a_coordinator_that_is_lost_in_its_ring_costs_less_than_a_round(
    seed: int, freeze: bool
) -> None:
    swarm = Swarm(seed, Setting(global_batch=72))
    swarm.run_until_agreed(90.0, 3)
    first, _, last = swarm.living
    began, before = first.now(), first.chain.head.round
    until(swarm, lambda: first.chain.head.round == before + 3)
    usual_s = (first.now() - began) / 3
    until(swarm, lambda: last.ring is not None)
    assert last.machine.phase is Phase.REDUCING
    lost_at = first.now()
    if freeze:
        last.suspend()
    else:
        last.die()
    until(swarm, lambda: first.chain.head.round == before + 4)
    assert first.now() - lost_at < 2 * usual_s


def until(swarm: Swarm, condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        swarm.run(0.02)
    raise AssertionError(swarm.story(100))


def rounds_in_two_minutes(mute: bool) -> int:
    """Of four peers, the last of which is slow; `mute`: and answers no call for promises."""
    swarm = Swarm(3, Setting(peers=4, global_batch=48, pass_seconds=(1.0, 1.0, 1.0, 4.0)))
    silent = swarm["D"].peer_id
    if mute:
        swarm.network.drop = lambda source, target, message: (
            source == silent and isinstance(message, Promise)
        )
    swarm.run(120.0)
    return swarm["A"].chain.head.round


def test_a_mute_voter_with_a_fresh_lease_does_not_slow_every_round() -> None:
    assert rounds_in_two_minutes(mute=True) >= 0.75 * rounds_in_two_minutes(mute=False)
