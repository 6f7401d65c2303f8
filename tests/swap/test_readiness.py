"""Readers of the arenas wait for exactly the pieces of a step that they read."""

import pytest

from atom.swap.host_store import Readiness, StepFailed

PIECES = [(0, 16), (16, 32), (40, 48), (48, 64)]


@pytest.mark.parametrize(
    ("start", "stop", "pieces"),
    [
        (0, 16, [0]),
        (0, 17, [0, 1]),
        (15, 32, [0, 1]),
        (16, 32, [1]),
        (32, 40, []),
        (31, 41, [1, 2]),
        (47, 48, [2]),
        (48, 48, []),
        (0, 64, [0, 1, 2, 3]),
        (64, 80, []),
    ],
)
def test_a_stretch_waits_for_its_own_pieces_and_no_others(
    start: int, stop: int, pieces: list[int]
) -> None:
    for missing in pieces:
        readiness = Readiness(PIECES)
        for piece in set(pieces) - {missing}:
            readiness.finish(piece)
        readiness.fail(MemoryError("no room"))
        with pytest.raises(StepFailed, match="MemoryError: no room"):
            readiness.wait(start, stop)
    readiness = Readiness(PIECES)
    for piece in pieces:
        readiness.finish(piece)
    readiness.wait(start, stop)


def test_each_who_waits_gets_the_failure_as_an_exception_of_its_own() -> None:
    readiness, cause, caught = Readiness(PIECES), MemoryError("no room"), []
    for _ in range(2):
        readiness.fail(cause)
        with pytest.raises(StepFailed) as seen:
            readiness.wait(0, 1)
        caught.append(seen.value)
    assert caught[0] is not caught[1]
    assert [failed.__cause__ for failed in caught] == [cause, cause]
