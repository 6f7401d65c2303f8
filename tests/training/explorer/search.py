"""Breadth first through all states, so that the first failure found is one of the shortest; and
walks at random, which go deeper."""

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

from . import actors
from .bounds import Bounds
from .properties import PROPERTIES, Property
from .world import Move, State, World


@dataclass(frozen=True)
class Verdict:
    """The outcome of a search. `trouble` is None if every state within the bounds is sound."""

    states: int
    moves: int
    depth: int
    """Moves on the longest of the shortest ways to a state, or to the failure."""
    local_states: int
    """Different states of single machines."""
    seconds: float
    """CPU time."""
    trouble: str | None
    way: tuple[Move, ...]
    """The moves that lead to the failure."""
    complete: bool
    """True if all states within the bounds were seen."""

    def story(self) -> str:
        """Return a line for each move, and the failure at the end."""
        lines = [f"{number:3}. {told(move)}" for number, move in enumerate(self.way, 1)]
        return "\n".join([*lines, f"     {self.trouble}"])


def told(move: Move) -> str:
    """Return a move in words."""
    number, kind, *rest = move
    return f"{actors.NAMES[number]}: {kind} {' '.join(map(_brief, rest))}".rstrip()


def _brief(thing: object) -> str:
    match thing:
        case actors.Voter():
            return f"from {actors.name(thing)}"
        case bytes():
            return thing.hex()[:6]
        case actors.Sight():
            seen = "".join(sorted(actors.NAMES[actors.NUMBERS[p]] for p in thing.fresh))
            return f"seeing {seen or 'nobody'}" + (
                " (others silent)" if thing.lapsed_seconds else ""
            )
        case actors.Place():
            return f"round {thing.head.round}"
    ballot = getattr(thing, "ballot", None)
    if ballot is None and hasattr(thing, "commit"):
        ballot = thing.commit.ballot
    at = f" at {ballot.attempt}{actors.NAMES[actors.NUMBERS[ballot.coordinator]]}" if ballot else ""
    return f"{type(thing).__name__}{at}" if at else str(thing)


def search(
    bounds: Bounds,
    seconds: float = float("inf"),
    tidies: bool = True,
    properties: Iterable[Property] = tuple(PROPERTIES.values()),
) -> Verdict:
    """Search every state within the bounds, for at most so many seconds of this core."""
    began, properties = time.process_time(), tuple(properties)
    world = World(bounds, tidies)
    start = world.start()
    parents: dict[State, tuple[State, Move] | None] = {start: None}
    level, depth, moves = [start], 0, 0

    def verdict(trouble: str | None, way: tuple[Move, ...], complete: bool) -> Verdict:
        spent = time.process_time() - began
        numbers = len(world.automaton.locals)
        return Verdict(len(parents), moves, depth, numbers, spent, trouble, way, complete)

    def way_to(state: State) -> tuple[Move, ...]:
        way: list[Move] = []
        while (before := parents[state]) is not None:
            state, move = before
            way.append(move)
        return tuple(reversed(way))

    while level and depth < bounds.depth:
        following: list[State] = []
        depth += 1
        for state in level:
            for step in world.steps(state):
                moves += 1
                found = (holds(world, step) for holds in properties if step.outcome)
                trouble = next(filter(None, found), None)
                if trouble is not None:
                    return verdict(trouble, (*way_to(state), step.move), False)
                if step.after not in parents:
                    parents[step.after] = state, step.move
                    following.append(step.after)
            if time.process_time() - began > seconds:
                return verdict(None, (), False)
        level = following
    return verdict(None, (), not level)


def walks(
    bounds: Bounds,
    seed: int,
    seconds: float,
    properties: Iterable[Property] = tuple(PROPERTIES.values()),
) -> Verdict:
    """Walk at random from the start, again and again, for so many seconds of this core."""
    began, properties, dice = time.process_time(), tuple(properties), random.Random(seed)
    world = World(bounds)
    seen, moves, deepest = set[State](), 0, 0
    trouble, way = None, list[Move]()
    while trouble is None and time.process_time() - began < seconds:
        state, way = world.start(), []
        while trouble is None and len(way) < bounds.depth:
            steps = list(world.steps(state))
            if not steps:
                break
            step = dice.choice(steps)
            way.append(step.move)
            found = (holds(world, step) for holds in properties if step.outcome)
            trouble = next(filter(None, found), None)
            state = step.after
            moves += 1
            seen.add(state)
        deepest = max(deepest, len(way))
    spent, numbers = time.process_time() - began, len(world.automaton.locals)
    told_way = tuple(way) if trouble else ()
    return Verdict(len(seen), moves, deepest, numbers, spent, trouble, told_way, False)
