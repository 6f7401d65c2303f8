"""Breadth first through all states, so that the first failure found is one of the shortest; and
walks at random, which go deeper."""

import gc
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.training.round.simulated_story import Story

from . import actors
from .bounds import Bounds
from .properties import PROPERTIES, Property
from .world import Move, State, World

_STORY = Story({peer_id: actors.NAMES[number] for peer_id, number in actors.NUMBERS.items()})


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
        case actors.Sight():
            seen = "".join(sorted(actors.NAMES[actors.NUMBERS[peer]] for peer in thing.fresh))
            silent = " (others silent)" if thing.lapsed_seconds else ""
            return f"seeing {seen or 'nobody'}{silent}"
        case actors.Place():
            return f"round {thing.head.round}"
    return _STORY.brief(thing)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for garbage rarely: nearly everything that a search makes stays."""
    before = gc.get_threshold()
    gc.set_threshold(1 << 18)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@rare_collections()
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
                trouble = next(filter(None, (holds(world, step) for holds in properties)), None)
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
    trouble, state, way = None, world.start(), list[Move]()
    while trouble is None and time.process_time() - began < seconds:
        steps = list(world.steps(state)) if len(way) < bounds.depth else []
        if not steps:
            state, way = world.start(), []
            continue
        step = dice.choice(steps)
        way.append(step.move)
        trouble = next(filter(None, (holds(world, step) for holds in properties)), None)
        state, moves, deepest = step.after, moves + 1, max(deepest, len(way))
        seen.add(state)
    spent, numbers = time.process_time() - began, len(world.automaton.locals)
    told_way = tuple(way) if trouble else ()
    return Verdict(len(seen), moves, deepest, numbers, spent, trouble, told_way, False)
