"""Breadth first through all states, so that the first failure found is one of the shortest.

States are compared whole, not by a hash: peers and attempts are numbered, a state is a tuple of
those numbers, and equal tuples are equal states. No collision can hide a state.
"""

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from .bounds import Bounds
from .ledger import Ledger
from .moves import Move, Moves
from .outlook import Outlook
from .properties import problem
from .rules import Rules
from .state import State

RulesOf = Callable[[Ledger, bool], Rules]


@dataclass(frozen=True)
class Verdict:
    """What a search found. `trouble` is None if every state within the bounds is sound."""

    states: int
    moves: int
    depth: int
    """Moves on the longest of the shortest ways to a state, or to the failure."""
    seconds: float
    """Of one core."""
    trouble: str | None
    way: tuple[Move, ...]
    """The moves that lead to the failure."""
    ledger: Ledger

    @property
    def states_per_s(self) -> float:
        return self.states / max(self.seconds, 1e-9)


class _Numbers:
    """Things by number, and back."""

    def __init__(self) -> None:
        self.things: list = []
        self._number: dict = {}

    def of(self, thing: object) -> int:
        number = self._number.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


class Search:
    """One search; use `run` once."""

    def __init__(self, bounds: Bounds, rules: RulesOf = Rules, forgets: bool = True) -> None:
        self._bounds = bounds
        self._ledger = Ledger(bounds.voters)
        self._rules = rules(self._ledger, bounds.branches_by_silence)
        self._moves = Moves(self._ledger, self._rules, bounds.rounds, forgets)
        self._outlook = Outlook(self._ledger, self._rules) if bounds.liveness else None
        self._peers, self._rest = _Numbers(), _Numbers()
        self._parents, self._turns = array("I", [0]), array("I", [0])
        self._move_count = 0

    def run(self) -> Verdict:
        began = time.process_time()
        start = self._bounds.start()
        first = self._packed(start)
        seen, level, depth = {first}, [(0, first)], 0
        while level:
            following: list[tuple[int, tuple[int, ...]]] = []
            for number, packed in level:
                trouble, way = self._expand(number, packed, seen, following)
                if trouble is not None:
                    return self._verdict(began, len(seen), depth + 1, trouble, way)
            level = following
            depth += bool(level)
        return self._verdict(began, len(seen), depth, None, ())

    def _expand(
        self,
        number: int,
        packed: tuple[int, ...],
        seen: set[tuple[int, ...]],
        following: list[tuple[int, tuple[int, ...]]],
    ) -> tuple[str | None, tuple[Move, ...]]:
        state = self._unpacked(packed)
        for turn, (move, after) in enumerate(self._moves(state)):
            self._move_count += 1
            key = self._packed(after, state, packed)
            known = key in seen
            trouble = problem(self._rules, state, move, after)
            if trouble is None and not known and self._outlook is not None:
                trouble = self._outlook.problem(after)
            if trouble is not None:
                return trouble, (*self._way_to(number), move)
            if not known:
                seen.add(key)
                following.append((len(self._parents), key))
                self._parents.append(number)
                self._turns.append(turn)
        return None, ()

    def _way_to(self, number: int) -> tuple[Move, ...]:
        turns = []
        while number:
            turns.append(self._turns[number])
            number = self._parents[number]
        state, way = self._bounds.start(), []
        for turn in reversed(turns):
            move, state = list(self._moves(state))[turn]
            way.append(move)
        return tuple(way)

    def _packed(
        self, state: State, before: State | None = None, known: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """`known` numbers the state before, from which most peers come unchanged."""
        numbers = []
        for p, peer in enumerate(state.peers):
            same = before is not None and peer is before.peers[p]
            numbers.append(known[p] if same else self._peers.of(peer))
        return (*numbers, self._rest.of((state.attempts, state.budget)))

    def _unpacked(self, packed: tuple[int, ...]) -> State:
        attempts, budget = self._rest.things[packed[-1]]
        return State(tuple(self._peers.things[n] for n in packed[:-1]), attempts, budget)

    def _verdict(
        self, began: float, states: int, depth: int, trouble: str | None, way: tuple[Move, ...]
    ) -> Verdict:
        seconds = time.process_time() - began
        return Verdict(states, self._move_count, depth, seconds, trouble, way, self._ledger)
