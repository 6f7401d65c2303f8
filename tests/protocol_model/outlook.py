"""Check that a commit is still within reach once faults stop.

From a state on, nobody fails any more, leases show the truth, the silent have been silent for the
grace time, and every message that was under way is lost. All living peers catch up with the best
head there is. Then each peer that the real electorate lets lead tries one attempt in which all
answer: one of them has to commit a value whose result somebody alive has; the others can follow.

What was said before is left out, so the answer depends on what the peers accepted alone,
and is remembered.
"""

from functools import cache

from .acts import Acts, numbers_heard
from .ledger import Ledger
from .rules import Rules, others_alive
from .state import ALIVE, Budget, Peer, State

_PLENTY = Budget(99, 99, 0, 0, 0)


class Outlook:
    def __init__(self, ledger: Ledger, rules: Rules) -> None:
        self._ledger, self._rules = ledger, rules
        self._acts = Acts(ledger, rules, rings_end_everywhere=False)
        self._known: dict[tuple, str | None] = {}

    def problem(self, state: State) -> str | None:
        """Why no commit can follow although a quorum lives, or a branch may be made; None if one
        can."""
        key = tuple(map(_what_matters, state.peers))
        if key not in self._known:
            self._known[key] = self._problem(State(state.peers, (), _PLENTY))
        return self._known[key]

    def _problem(self, state: State) -> str | None:
        alive = [p for p, peer in enumerate(state.peers) if peer.status == ALIVE]
        if not alive:
            return None
        state = self._all_at_one_head(state, alive)
        head = state.peers[alive[0]].head
        leaders = [(p, s) for p in alive for s in self._electorate(state, p)]
        if not leaders:
            return "a quorum lives, and no peer leads" if self._has_quorum(state) else None
        if any(self._commits(state, p, survivors, alive, head) for p, survivors in leaders):
            return None
        return "stuck: no peer's attempt can commit any more"

    def _all_at_one_head(self, state: State, alive: list[int]) -> State:
        best = alive[0]
        for p in alive:
            if self._rules.prefers(state.peers[p].head, state.peers[best].head):
                best = p
        for p in alive:
            if state.peers[p].head != state.peers[best].head:
                state = self._acts.fetch(state, p, best)
        return state

    def _electorate(self, state: State, p: int) -> list[tuple]:
        """Return the answer of the real rule to a peer that sees all living peers."""
        peers, head = state.peers, state.peers[p].head
        me, gone = (p, peers[p].incarnation), self._rules.gone(head, peers)
        chosen = self._rules.electorate(head, me, others_alive(me, peers), gone)
        return [] if chosen is None else [chosen]

    def _has_quorum(self, state: State) -> bool:
        living = [(p, peer) for p, peer in enumerate(state.peers) if peer.status == ALIVE]
        voters = tuple((p, peer.incarnation) for p, peer in living)
        return any(self._ledger.is_quorum(peer.head, voters) for _, peer in living)

    def _commits(self, state: State, p: int, survivors: tuple, alive: list[int], head: int) -> bool:
        number = max(numbers_heard(state, head), default=0) + 1
        state = self._acts.start(state, p, number, survivors)
        for q in alive:
            state = self._acts.promise(state, q, 0) or state
        attempt = state.attempts[0]
        present = tuple(promised.voter for promised in attempt.promises)
        if not self._rules.decides(attempt, present, state.peers):
            return False
        value = self._rules.to_finish(attempt.promises)
        if value is not None:
            value = self._acts.finished(attempt, value)
            state = self._acts.propose(state, 0, value)
        else:
            averaged = self._acts.ring(state, 0, attempt.promises)
            if averaged is None:
                return False
            state = averaged
        for q in alive:
            state = self._acts.vote(state, q, 0) or state
        if self._acts.commit(state, 0) is None:
            return False
        a = state.attempts[0]
        return self._rules.certified(a) and any(
            self._acts.has_accepted(state.peers[q], a.value) for q in alive
        )


@cache
def _what_matters(peer: Peer) -> tuple:
    """All but the promises: an attempt still to come outnumbers any of them."""
    accepted = tuple((slot[0], slot[2]) for slot in peer.slots if slot[2])
    return (*peer[:5], accepted, peer.leaving)
