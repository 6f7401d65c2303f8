"""A voter gives up the value that it accepted for an older exchange's value, once a quorum vouched
for that one at a later ballot. So no voter is blocked when another one dies.
"""

from collections.abc import Iterator

import pytest

from .bounds import Bounds
from .fair import progress_problem
from .world import State, Step, World

pytestmark = pytest.mark.timeout(900)  # seconds of a free core; a busy one takes its time

STORY = """
B: tick | C: Prepare 1 | B: Promise 1 | B: tick | C: Ring 1 | B: finish | C: finish | B: Vouched 1
A: Prepare 1 | A: tick 5 | A: tick
C: Prepare 2 | A: Promise 2 | A: tick | C: Ring 2 | A: finish | C: finish | A: Vouched 2
C: tick | C: tick | B: Prepare 3 | C: Promise 3 | C: tick | B: Accept 3 | C: fetched | C: Vouched 3
"""
"""B accepts its value at ballot 1, and no peer hears of it. A and C average again, and A accepts
that value at ballot 2, and no peer hears of it. C asks B for ballot 3. Both vouch for the value of
ballot 1, and C accepts it."""


@pytest.mark.parametrize("dies", ["A", "B", ""])
def test_two_voters_with_different_values_decide_at_once(dies: str) -> None:
    """No branch is needed: the dead voter is not silent for the grace time."""
    world = World(Bounds("", 3, 9, ticks=99, crashes=1))
    state = _told(world, STORY, world.start())
    assert _differ(world, state)
    state = _told(world, f"{dies}: crash", state) if dies else state
    assert progress_problem(world, state) is None


def _differ(world: World, state: State) -> bool:
    """Return True if A has accepted one value, and then C the value that B accepted before."""
    votes = {vote.number: vote for vote in world.known(state.facts & world.votes)}
    newer, lost, older = (votes[number] for number in range(3))
    return older.value == lost.value != newer.value and older.ballot > newer.ballot > lost.ballot


def _told(world: World, story: str, state: State) -> State:
    """Return the state at the end of a story."""
    for line in story.strip().replace("\n", " | ").split(" | "):
        state = _step(world, state, line).after
    return state


def _step(world: World, state: State, line: str) -> Step:
    """Return the first step that a line of the story means."""
    return next(step for step in world.steps(state) if line in _names(step))


def _names(step: Step) -> Iterator[str]:
    number, kind, *rest = step.move
    who = "ABC"[number]
    if kind == "hear":
        ballot = getattr(rest[1], "ballot", None)
        yield f"{who}: {type(rest[1]).__name__} {ballot and ballot.attempt}"
    elif kind == "tick" and not rest[0].lapsed_seconds:
        yield f"{who}: tick" if rest[1] < 5 else f"{who}: tick 5"
    else:
        yield f"{who}: {kind}"
