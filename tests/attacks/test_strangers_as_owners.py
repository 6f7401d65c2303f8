"""Attack: strangers that want to own parts of an exchange in their first round, or break it.

An owner writes any sum of its part: nobody checks it. So a stranger with one sequence would write a
share of everybody's gradient. All peers are real machines, and messages arrive at once.
"""

from collections import deque
from dataclasses import dataclass, field

from atom.swarm.chain.commit import Voter
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease
from atom.training.round.events import (
    Action,
    Event,
    ExchangeFailed,
    Freeze,
    Frozen,
    Received,
    Send,
    StartExchange,
    Tick,
    View,
)
from atom.training.round.machine import RoundMachine
from atom.training.round.round_state import RoundTerms
from tests.attacks.test_one_lying_voter import BATCH, GIVEN, HEAD, KEY_OF, STATE, VOTERS
from tests.swarm.swarm_samples import a_lease

KEYS = [Identity.create() for _ in range(2)]
STRANGERS = tuple(Voter(key.peer_id, bytes([100 + n]) * 16) for n, key in enumerate(KEYS))
STRANGE = {voter.peer_id for voter in STRANGERS}
KNOWN = {voter.peer_id for voter in VOTERS}


@dataclass
class Swarm:
    """Machines of all voters and of two strangers, with the exchanges that they entered."""

    machines: dict[str, RoundMachine] = field(default_factory=dict)
    starts: list[StartExchange] = field(default_factory=list)
    blamed: str = ""
    """Peer that the strangers blame for each exchange; all exchanges break."""
    now: float = 0.0

    def __post_init__(self) -> None:
        signers = {**KEY_OF, **dict(zip(STRANGERS, KEYS, strict=True))}
        terms = RoundTerms(BATCH, average_bytes=10**9)
        for voter, key in signers.items():
            machine = RoundMachine(voter, HEAD, STATE, terms, key.sign, 0.0)
            self.machines[voter.peer_id] = machine

    def leases(self) -> dict[str, Lease]:
        return {
            peer_id: a_lease(
                peer_id,
                incarnation=machine.me.incarnation,
                head=HEAD.digest,
                round=HEAD.round,
                sequences=self.counted(peer_id),
                state_digest=STATE,
            )
            for peer_id, machine in self.machines.items()
        }

    def counted(self, peer_id: str) -> int:
        return 1 if peer_id in STRANGE else GIVEN

    def run(self, seconds: float) -> None:
        """Let time pass, in which every exchange breaks after its start."""
        ends_at = self.now + seconds
        while self.now < ends_at:
            self.now += 0.1
            for peer_id in self.machines:
                others = {k: lease for k, lease in self.leases().items() if k != peer_id}
                self.tell(peer_id, Tick(View(fresh=others, sequences=self.counted(peer_id))))

    def tell(self, peer_id: str, event: Event) -> None:
        """Handle an event and all that follows; strangers hear, and answer, before all others."""
        waiting = deque([(peer_id, event)])
        while waiting:
            at, next_event = waiting.popleft()
            for action in self.machines[at].handle(next_event, self.now):
                if (answer := self.answer(at, action)) is not None:
                    is_first = not STRANGE.isdisjoint({at, answer[0]})
                    (waiting.appendleft if is_first else waiting.append)(answer)

    def answer(self, at: str, action: Action) -> tuple[str, Event] | None:
        if isinstance(action, Send):
            return action.to, Received(at, self.machines[at].me.incarnation, action.message)
        if isinstance(action, Freeze):
            return at, Frozen(action.ballot, self.counted(at), 1.0)
        if isinstance(action, StartExchange):
            self.starts.append(action)
            suspect = self.blamed if at in STRANGE else min(STRANGE)
            return at, ExchangeFailed(action.ballot, suspect, "closed")
        return None


def owners(start: StartExchange) -> set[str]:
    """Return the peers that sum a part; all members in a ring."""
    shares = start.shares or (1,) * len(start.members)
    return {m.peer_id for m, share in zip(start.members, shares, strict=True) if share}


def test_a_stranger_owns_no_part_in_its_first_round() -> None:
    swarm = Swarm()
    swarm.run(5.0)
    first = swarm.starts[0]
    assert {member.peer_id for member in first.members} == KNOWN | STRANGE
    assert first.shares, "each number of a ring passes through every member"
    assert owners(first) == KNOWN


def test_strangers_that_blame_an_honest_peer_take_nothing_from_it() -> None:
    """Two broken connections name a culprit, and owners of broken ones would own no part."""
    honest = VOTERS[1].peer_id
    swarm = Swarm(blamed=honest)
    swarm.run(10.0)
    first, *later = [start for start in swarm.starts if honest in owners(start)]
    assert {start.ballot for start in later} - {first.ballot}, "it owns parts afterwards as well"
    assert all(owners(start) <= KNOWN for start in swarm.starts)
    for voter in VOTERS:
        assert swarm.machines[voter.peer_id].excluded <= STRANGE
