"""Breadth first through all states, so that the first failure found is one of the shortest.

States are compared whole: no collision of hashes can hide one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from . import cast
from .bounds import Bounds
from .ledger import Ledger
from .moves import Move, Moves
from .outlook import Outlook
from .properties import problem
from .rules import Rules
from .state import Attempt, State

RulesOf = Callable[[Ledger, bool], Rules]


@dataclass(frozen=True)
class Verdict:
    """Result of a search. `trouble` is None if every state within the bounds is sound."""

    states: int
    moves: int
    depth: int
    """Moves on the longest of the shortest ways to a state, or to the failure."""
    seconds: float
    """Seconds of one core."""
    trouble: str | None
    way: tuple[Move, ...]
    """The moves that lead to the failure."""

    def story(self) -> str:
        """Return a line for each move, and the broken property at the end."""
        lives = [0] * len(cast.NAMES)
        lines = []
        for number, (kind, p, *rest) in enumerate(self.way, 1):
            who = cast.name((p, lives[p]))
            lines.append(f"{number:3}. {who}: {kind} {' '.join(map(_brief, rest))}")
            lives[p] += kind == "restart"
        return "\n".join([*lines, f"     {self.trouble}"])


def _brief(what: object) -> str:
    if isinstance(what, Attempt):
        return f"at ballot {what.ballot[0]}{cast.name(what.ballot[1:])}"
    return str(what)


class Search:
    """One search; use `run` once."""

    def __init__(self, bounds: Bounds, rules: RulesOf = Rules, forgets: bool = True) -> None:
        self._start, ledger = bounds.start(), Ledger(bounds.voters)
        self._rules = rules(ledger, bounds.branches_by_silence)
        self._moves = Moves(ledger, self._rules, bounds.rounds, forgets)
        self._outlook = Outlook(ledger, self._rules) if bounds.liveness else None
        self._parents: dict[State, State | None] = {self._start: None}
        self._same: dict[tuple, tuple] = {}
        self._move_count = 0

    def run(self) -> Verdict:
        began = time.process_time()
        level, depth = [self._start], 0
        while level:
            following: list[State] = []
            for state in level:
                trouble, way = self._expand(state, following)
                if trouble is not None:
                    return self._verdict(began, depth + 1, trouble, way)
            level = following
            depth += bool(level)
        return self._verdict(began, depth, None, ())

    def _expand(self, state: State, following: list[State]) -> tuple[str | None, tuple[Move, ...]]:
        for move, after in self._moves(state):
            self._move_count += 1
            trouble = problem(self._rules, state, move, after)
            known = after in self._parents
            if trouble is None and not known and self._outlook is not None:
                trouble = self._outlook.problem(after)
            if trouble is not None:
                return trouble, (*self._way_to(state), move)
            if not known:
                after = self._shared(after)
                self._parents[after] = state
                following.append(after)
        return None, ()

    def _shared(self, state: State) -> State:
        """Return an equal state that shares peers and attempts with other states to save memory."""
        peers = tuple(self._same.setdefault(peer, peer) for peer in state.peers)
        return State(peers, self._same.setdefault(state.attempts, state.attempts), state.budget)

    def _way_to(self, state: State) -> tuple[Move, ...]:
        before = self._parents[state]
        if before is None:
            return ()
        last = next(move for move, after in self._moves(before) if after == state)
        return (*self._way_to(before), last)

    def _verdict(
        self, began: float, depth: int, trouble: str | None, way: tuple[Move, ...]
    ) -> Verdict:
        seconds = time.process_time() - began
        states = len(self._parents)
        return Verdict(states, self._move_count, depth, seconds, trouble, way)
