"""Acts of one peer, each in one move.

Some things are taken in one move though the daemon takes several, and nothing is lost by it:

- A coordinator reads its notebook of promises (and of votes) at one moment only, when it goes on;
  so hearing them is no move: it goes on with any deciding part of those that were sent.
- Composing a ring and its end are one move. In between nobody reads the composition, and the ring
  ends only if every member still stands by its promise then. A ring that breaks changes nothing.
- A coordinator promises its own ballot when it starts, and accepts its own ring's result, in the
  same call of the machine; a crash in between is one before or after it.
- Who first hears PREPARE when a value is proposed already is not heard by the coordinator any more;
  its late promise is one move with its vote. The promise alone would only forbid it something.
- A voter that accepted a value offers its result as soon as any PREPARE reaches it, which may be at
  any time: so it counts as offered at once, and so do results that ring members merely hold. The
  outlook assumes less: there, of earlier rings, only who accepted the result has it.
- A peer that catches up does so to the newest head of its donor; an older one is an earlier move.
"""

from collections.abc import Iterator

from . import cast
from .cast import VoterKey
from .ledger import Ledger
from .rules import Rules, accepted_in, highest_promised
from .state import (
    ALIVE,
    NOTHING,
    Attempt,
    Budget,
    Peer,
    Peers,
    Promised,
    State,
    Survivors,
    lives,
    replaced,
    with_one,
)
from .tidy import is_led


class Acts:
    """Acts that return the state after them; None if a peer refuses, or the act does not apply."""

    def __init__(self, ledger: Ledger, rules: Rules, rings_end_everywhere: bool = True) -> None:
        """`rings_end_everywhere`: all members get a ring's result; else only the members of the
        first attempt's ring."""
        self.ledger, self.rules = ledger, rules
        self._rings_end_everywhere = rings_end_everywhere

    # ---- leading

    def start(self, state: State, p: int, number: int, survivors: Survivors) -> State:
        """Send PREPARE to every peer that may hear it; the coordinator promises first."""
        peer, budget = state.peers[p], state.budget
        ballot = number, p, peer.incarnation
        attempt = Attempt(peer.head, ballot, survivors, (), NOTHING, (), False)
        if survivors:
            budget = budget._replace(branches=budget.branches - 1)
        else:
            budget = budget._replace(starts=budget.starts - 1)
        attempts = tuple(sorted((*state.attempts, attempt)))
        begun = State(state.peers, attempts, budget)
        promised = self.promise(begun, p, attempts.index(attempt))
        assert promised is not None, "a coordinator surpasses its own promises"
        return promised

    def promise(self, state: State, q: int, at: int) -> State | None:
        """`q` hears PREPARE."""
        peer, attempt = state.peers[q], state.attempts[at]
        me = q, peer.incarnation
        if peer.status != ALIVE or not self.rules.takes_part(peer, attempt.head):
            return None
        if attempt.survivors and me not in attempt.survivors:
            return None
        slots = self.rules.promise(peer.slots, attempt.survivors, attempt.ballot)
        if slots is None:
            return None
        accepted = accepted_in(slots, self.rules.slot_of(attempt.survivors))
        before = accepted_in(slots, ()) if attempt.survivors else ()
        promised = Promised(me, accepted, before, peer.leaving)
        attempt = attempt._replace(promises=tuple(sorted((*attempt.promises, promised))))
        return State(
            replaced(state.peers, q, peer._replace(slots=slots)),
            replaced(state.attempts, at, attempt),
            state.budget,
        )

    def ring(self, state: State, at: int, heard: tuple[Promised, ...]) -> State | None:
        """Average over all members; the coordinator proposes the result. None: the ring breaks."""
        attempt, peers = state.attempts[at], state.peers
        members = tuple(p.voter for p in heard)
        if not all(self._stands_by(attempt, member, peers) for member in members):
            return None
        leaving = frozenset(p.voter[0] for p in heard if p.leaving)
        units = tuple((*member, peers[member[0]].tag) for member in members)
        voters = self.rules.voters_next(attempt.head, attempt.survivors, members, leaving)
        value = self.ledger.value(
            attempt.head, attempt.ballot, units, voters, attempt.survivors, leaving
        )
        return self.propose(state, at, value)

    def finished(self, attempt: Attempt, value: int) -> int:
        """Return the value that these electors propose to finish an accepted one: for survivors, a
        branch of theirs with its result."""
        made, survivors = self.ledger.values[value], attempt.survivors
        if made.value.survivors == cast.voters(survivors):
            return value
        voters = self.rules.voters_next(attempt.head, survivors, made.members, made.leaving)
        return self.ledger.value(
            attempt.head, made.origin, made.units, voters, survivors, made.leaving, made.result
        )

    def _stands_by(self, attempt: Attempt, member: VoterKey, peers: Peers) -> bool:
        peer = peers[member[0]]
        slot = self.rules.slot_of(attempt.survivors)
        return (
            lives(member, peers)
            and self.rules.takes_part(peer, attempt.head)
            and any(s[0] == slot and s[1] == attempt.ballot for s in peer.slots)
        )

    def propose(self, state: State, at: int, value: int) -> State:
        """ACCEPT goes out; the coordinator is the first to accept, if it has the result."""
        attempt = state.attempts[at]._replace(value=value, promises=())
        proposed = State(state.peers, replaced(state.attempts, at, attempt), state.budget)
        leader = attempt.ballot[1]
        made_here = self.ledger.values[value].origin == attempt.ballot
        if made_here or self.has_accepted(state.peers[leader], value):
            return self.vote(proposed, leader, at) or proposed
        return proposed

    # ---- accepting and committing

    def vote(self, state: State, q: int, at: int) -> State | None:
        """`q` hears ACCEPT, and PREPARE if it had not yet."""
        peer, attempt = state.peers[q], state.attempts[at]
        me = q, peer.incarnation
        if peer.status != ALIVE or me in attempt.votes:
            return None
        if not self.rules.takes_part(peer, attempt.head):
            return None
        if not self.rules.votes(attempt, me):
            return None
        if not self.is_at_hand(state, q, attempt.value):
            return None
        promised = self.rules.promise(peer.slots, attempt.survivors, attempt.ballot) or peer.slots
        slots = self.rules.accept(promised, attempt.survivors, attempt.ballot, attempt.value)
        if slots is None:
            return None
        peer = peer._replace(slots=slots)
        attempt = attempt._replace(votes=with_one(attempt.votes, me))
        return State(
            replaced(state.peers, q, peer), replaced(state.attempts, at, attempt), state.budget
        )

    def is_at_hand(self, state: State, q: int, value: int) -> bool:
        """Return True if `q` has the result, or some living peer can serve it to `q`."""
        made = self.ledger.values[value]
        offered = self.rules.offers_what_it_accepted()
        ring_ended = self._rings_end_everywhere or made.origin == state.attempts[0].ballot
        for r, peer in enumerate(state.peers):
            if peer.status != ALIVE:
                continue
            if made.result in self.ledger.heads[peer.head].results:
                return True
            holds = (
                ring_ended and peer.head == made.parent and (r, peer.incarnation) in made.members
            )
            if (offered or r == q) and (holds or self.has_accepted(peer, value)):
                return True
        return False

    def has_accepted(self, peer: Peer, value: int) -> bool:
        """Return True if the peer accepted a value with the same result."""
        values = self.ledger.values
        accepted = (slot[2][1] for slot in peer.slots if slot[2])
        return any(values[other].result == values[value].result for other in accepted)

    def commit(self, state: State, at: int) -> State | None:
        """COMMIT goes out."""
        a = state.attempts[at]
        if not is_led(a, state.peers) or not a.votes:
            return None
        if not self.rules.decides(a, a.votes, state.peers):
            return None
        committed = a._replace(committed=True)
        return State(state.peers, replaced(state.attempts, at, committed), state.budget)

    def step(self, state: State, q: int, value: int) -> State:
        """Apply a committed result at `q`, which forgets its records of the old head."""
        peer = state.peers[q]
        head = self.ledger.head_after(peer.head, value)
        applied = self.ledger.values[self.rules.result_applied(peer, value)].result
        content = self.ledger.content_after(peer.content, applied)
        peer = peer._replace(head=head, content=content, tag=head, slots=())
        return state._replace(peers=replaced(state.peers, q, peer))

    def fetch(self, state: State, p: int, q: int) -> State:
        """`p` catches up from `q`, whose head it prefers."""
        peer, donor = state.peers[p], state.peers[q]
        peer = peer._replace(
            head=donor.head,
            content=donor.content,
            tag=self.rules.tag_after_fetch(peer.tag, donor.head),
            slots=(),
        )
        return state._replace(peers=replaced(state.peers, p, peer))

    # ---- coming and going

    def gone(self, state: State, p: int, status: int, budget: Budget) -> State:
        peer = state.peers[p]
        left = Peer(status, peer.incarnation, peer.head, 0, NOTHING, (), False)
        return State(replaced(state.peers, p, left), state.attempts, budget)

    def returned(self, state: State, p: int, head: int, budget: Budget) -> State:
        """A new incarnation, from a disk that may lack the last commit."""
        number = state.peers[p].incarnation + 1
        content = self.ledger.heads[head].content
        fresh = Peer(ALIVE, number, head, content, head, (), False)
        return State(replaced(state.peers, p, fresh), state.attempts, budget)


def numbers_heard(state: State, head: int) -> Iterator[int]:
    """Yield attempt numbers that any peer at that head has promised."""
    for peer in state.peers:
        if peer.status == ALIVE and peer.head == head and peer.slots:
            yield highest_promised(peer.slots)[0]
