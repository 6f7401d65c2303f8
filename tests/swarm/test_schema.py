"""A message's class is its schema: what is declared is what travels, and nothing else gets in."""

import math
from dataclasses import dataclass, make_dataclass
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import pytest

from atom.base.reasons import Reason
from atom.swarm.schema import MAX_INT, decode, encode
from tests.swarm.refusals import refusal

Pair = Annotated[bytes, lambda raw: len(raw) == 2]


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True)
class Drawing:
    name: Pair
    colour: Colour
    corner: Point
    points: Annotated[tuple[Point, ...], 2]
    labels: Annotated[tuple[Pair, ...], 2] = ()
    scale: Annotated[float, lambda number: number > 0] | None = None
    centre: Point | None = None
    is_filled: bool = False


def a_drawing(**changes: Any) -> Drawing:
    fields: dict[str, Any] = {"name": b"ab", "colour": Colour.BLUE, "corner": Point(1, 2.0)}
    return Drawing(**(fields | {"points": ()} | changes))


@pytest.mark.parametrize(
    "drawing",
    [
        a_drawing(),
        a_drawing(points=(Point(0, 0.0), Point(MAX_INT, -0.5)), labels=(b"cd", b"ef")),
        a_drawing(scale=0.5, centre=Point(0, 0.0), is_filled=True),
    ],
)
def test_a_message_survives_the_journey(drawing: Drawing) -> None:
    assert decode(Drawing, encode(drawing), 200) == drawing


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": b"abc"}, Reason.MALFORMED),
        ({"colour": "green"}, Reason.MALFORMED),
        ({"corner": None}, Reason.MALFORMED),
        ({"corner": Point(MAX_INT + 1, 0.0)}, Reason.MALFORMED),
        ({"corner": Point(0, math.nan)}, Reason.NOT_FINITE),
        ({"points": (Point(0, 0.0),) * 3}, Reason.TOO_LARGE),
        ({"labels": (b"ab", b"c")}, Reason.MALFORMED),
        ({"scale": 0.0}, Reason.MALFORMED),
        ({"labels": (b"ab",) * 100}, Reason.TOO_LARGE),
    ],
)
def test_a_field_out_of_its_bounds_is_refused(changes: dict[str, Any], reason: Reason) -> None:
    assert refusal(decode, Drawing, encode(a_drawing(**changes)), 200) is reason


UNBOUNDED = [bytes, str, tuple[int, ...], Annotated[tuple[Pair, ...], bool]]


@pytest.mark.parametrize("hint", UNBOUNDED)
def test_no_field_goes_without_a_bound(hint: Any) -> None:
    with pytest.raises(AssertionError):
        decode(make_dataclass("Unbounded", [("field", hint)]), b"", 1)
