"""Everything that can happen next. Each move is one thing that one peer does.

Timers and leases are not there: whatever they may trigger may happen at any time. Pre-votes,
refusals, aborts and suspicions only say when to try again.
"""

from collections.abc import Callable, Iterator
from itertools import combinations

from .acts import Acts, numbers_heard
from .ledger import Ledger
from .rules import Rules, highest_promised
from .state import ALIVE, DEAD, LEFT, NOTHING, Attempt, Peers, Promised, State, replaced
from .tidy import is_led, tidied

Move = tuple
"""Description of a move for the story: a word, the actor, and details."""


class Moves:
    """All moves from a state, in an order that never changes."""

    def __init__(self, ledger: Ledger, rules: Rules, rounds: int, forgets: bool) -> None:
        """No peer starts an attempt once `rounds` are committed below it. `forgets`: see `tidy`."""
        self._ledger, self._rules, self._rounds, self._forgets = ledger, rules, rounds, forgets
        self._acts = Acts(ledger, rules)

    def __call__(self, state: State) -> Iterator[tuple[Move, State]]:
        for move, after in self._all(state):
            yield move, tidied(after, self._ledger, self._rules) if self._forgets else after

    def _all(self, state: State) -> Iterator[tuple[Move, State]]:
        for at, attempt in enumerate(state.attempts):
            if attempt.committed:
                yield from self._steps(state, attempt)
            else:
                if attempt.value == NOTHING:
                    yield from self._heard(state, at, "promise", self._acts.promise)
                    yield from self._proposals(state, at)
                else:
                    yield from self._heard(state, at, "accept", self._acts.vote)
                    yield from self._commit(state, at)
        for p, peer in enumerate(state.peers):
            if peer.status == ALIVE:
                yield from self._starts(state, p)
                yield from self._fetches(state, p)
            yield from self._faults(state, p)

    # ---- leading

    def _starts(self, state: State, p: int) -> Iterator[tuple[Move, State]]:
        peer, budget = state.peers[p], state.budget
        if self._ledger.round(peer.head) >= self._rounds or not (budget.starts or budget.branches):
            return
        me = p, peer.incarnation
        own = highest_promised(peer.slots)
        lowest = own[0] + 1 if own else 1
        highest = max([lowest, *(n + 1 for n in numbers_heard(state, peer.head))])
        for survivors in self._rules.electorates(peer.head, me, state.peers):
            left = budget.branches if survivors else budget.starts
            for number in range(lowest, highest + 1) if left else ():
                after = self._acts.start(state, p, number, survivors)
                yield ("start", p, (number, *me), survivors), after

    def _heard(
        self, state: State, at: int, answer: str, act: Callable[[State, int, int], State | None]
    ) -> Iterator[tuple[Move, State]]:
        """Yield the moves of peers that hear the coordinator's request: any peer may hear it."""
        for q in range(len(state.peers)):
            after = act(state, q, at)
            if after is not None:
                yield (answer, q, state.attempts[at]), after

    def _proposals(self, state: State, at: int) -> Iterator[tuple[Move, State]]:
        attempt = state.attempts[at]
        if not is_led(attempt, state.peers):
            return
        values, rings = self._possible(attempt, state.peers)
        for value in values:
            yield (
                ("finish", attempt.ballot[1], attempt, value),
                self._acts.propose(state, at, value),
            )
        for heard in rings:
            members = tuple(promised.voter for promised in heard)
            after = self._acts.ring(state, at, heard)
            if after is not None:
                yield ("ring", attempt.ballot[1], attempt, members), after

    def _possible(
        self, attempt: Attempt, peers: Peers
    ) -> tuple[list[int], list[tuple[Promised, ...]]]:
        """Return the values to finish, and the rings, of any deciding part of the promises."""
        values: set[int] = set()
        rings = []
        for size in range(1, len(attempt.promises) + 1):
            for heard in combinations(attempt.promises, size):
                present = tuple(p.voter for p in heard)
                if attempt.ballot[1:] not in present:
                    continue
                if not self._rules.decides(attempt, present, peers):
                    continue
                value = self._rules.to_finish(heard)
                if value is None:
                    rings.append(heard)
                else:
                    values.add(self._acts.finished(attempt, value))
        return sorted(values), rings

    # ---- accepting and committing

    def _commit(self, state: State, at: int) -> Iterator[tuple[Move, State]]:
        after = self._acts.commit(state, at)
        if after is not None:
            yield ("commit", state.attempts[at].ballot[1], state.attempts[at]), after

    def _steps(self, state: State, attempt: Attempt) -> Iterator[tuple[Move, State]]:
        for q, peer in enumerate(state.peers):
            stands_there = peer.status == ALIVE and peer.head == attempt.head
            if stands_there and self._acts.is_at_hand(state, q, attempt.value):
                yield ("step", q, attempt), self._acts.step(state, q, attempt.value)

    def _fetches(self, state: State, p: int) -> Iterator[tuple[Move, State]]:
        heads = {peer.head for peer in state.peers if peer.status == ALIVE}
        for q, donor in enumerate(state.peers):
            if donor.status == ALIVE and donor.head in heads:
                heads.discard(donor.head)  # one donor for each head will do
                if self._rules.prefers(donor.head, state.peers[p].head):
                    yield ("fetch", p, q, donor.head), self._acts.fetch(state, p, q)

    # ---- coming and going

    def _faults(self, state: State, p: int) -> Iterator[tuple[Move, State]]:
        peer, budget = state.peers[p], state.budget
        if peer.status == ALIVE and budget.crashes:
            left = budget._replace(crashes=budget.crashes - 1)
            yield ("crash", p), self._acts.gone(state, p, DEAD, left)
        if peer.status == DEAD and budget.restarts:
            left = budget._replace(restarts=budget.restarts - 1)
            for head in self._ledger.heads[peer.head].path[-2:]:
                yield ("restart", p, head), self._acts.returned(state, p, head, left)
        if peer.status == ALIVE and not peer.leaving and budget.leaves:
            left = budget._replace(leaves=budget.leaves - 1)
            leaver = peer._replace(leaving=True)
            yield ("leave", p), State(replaced(state.peers, p, leaver), state.attempts, left)
        if peer.status == ALIVE and peer.leaving:
            yield ("goodbye", p), self._acts.gone(state, p, LEFT, budget)
