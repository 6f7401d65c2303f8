"""A voter refuses the value of an older exchange than the ballot at which it accepted another one:
perhaps a quorum has decided the latter, and a liar brings up the former.

In rare orders of events the value is the right one all the same. Then the other voters decide it
without that voter. If one of them is gone, the voter goes on alone once its head is overdue.
"""

from collections.abc import Iterator

import pytest

from atom.training.round.electorate import ORDINARY

from . import fair
from .bounds import Bounds
from .fair import progress_problem
from .world import State, Step, World

pytestmark = pytest.mark.timeout(900)  # seconds of a free core; a busy one takes its time

STORY = """
B: tick | C: Prepare 1 | B: Promise 1 | B: tick | C: Ring 1 | B: finish | C: finish | B: Averaged 1
A: Prepare 1 | A: tick 5 | A: tick
C: Prepare 2 | A: Promise 2 | A: tick | C: Ring 2 | A: finish | C: finish | A: Averaged 2
C: tick | C: tick | B: Prepare 3 | C: Promise 3 | C: tick | C: fetched
"""
"""B accepts its value at ballot 1, and no peer hears of it. A and C average again, and A accepts
that value at ballot 2, and no peer hears of it. C asks B for ballot 3, and accepts the value of
ballot 1."""


FOURTH = """
C: tick | C: tick | A: Prepare 4 | B: Prepare 4 | C: Promise 4
A: Accept 4 | C: Nack 4 | B: Accept 4 | C: AcceptedVote 4
"""
"""C leads again, and hears of the refusal of A before the vote of B."""


def test_a_quorum_finishes_the_older_value_without_the_voter_that_refuses_it() -> None:
    world = World(Bounds("", 3, 9, ticks=99, refusals=True))
    state = _told(world, STORY, world.start())
    assert _differ(world, state)
    state = _told(world, FOURTH, state)
    assert [_round(world, state, number) for number in range(3)] == [0, 0, 1]


def test_a_voter_that_is_needed_and_refuses_goes_on_alone_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B dies. A refuses the value of C: the two decide nothing, and A opens a branch."""
    world = World(Bounds("", 3, 9, ticks=99, crashes=1, branches=True))
    state = _told(world, STORY, world.start())
    assert _differ(world, state)
    state = _told(world, "B: crash", state)
    assert progress_problem(world, state, silent=True) is not None
    monkeypatch.setattr(fair, "TICKS", 150)
    assert progress_problem(world, state, silent=True) is None


def _differ(world: World, state: State) -> bool:
    """Return True if A has accepted one value, and then C the value that B accepted before."""
    newer, lost, older = (world.accepted(state, number)[ORDINARY] for number in range(3))
    return older.value == lost.value != newer.value and older.ballot > newer.ballot > lost.ballot


def _round(world: World, state: State, number: int) -> int:
    local = world.local(state, number)
    assert local is not None
    return local.head.round


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
