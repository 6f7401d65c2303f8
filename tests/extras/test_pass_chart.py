"""A pass drawn in characters."""

from string import ascii_lowercase, ascii_uppercase, digits

import pytest

from atom.extras.pass_chart import pass_chart
from atom.swap.schedule import (
    Backward,
    Forward,
    GradientOut,
    GradientSum,
    Load,
    Shape,
    ValuesOut,
    training_pass,
)
from atom.swap.timeline import Durations, Span, Timeline, simulate


def long_pass(sub_models: int) -> Timeline:
    shape, each = Shape(sub_models, 1), (1.0,) * sub_models
    return simulate(training_pass(shape), shape, Durations((0.7,) * sub_models, each, each, each))


def test_a_picture_of_two_sub_models() -> None:
    pass_ = Timeline.of(
        [
            Span(Load(0, 0), 0.0, 0.4),
            Span(Load(1, 1), 0.4, 0.8),
            Span(Forward(0, 0), 0.4, 0.6),
            Span(Backward(1, 0), 0.8, 1.4),
            Span(ValuesOut(0, 0), 0.6, 0.7),
            Span(GradientOut(1), 1.4, 1.6),
            Span(Backward(0, 0), 1.4, 1.52),
            Span(GradientSum(1), 1.6, 2.0),
        ]
    )
    assert pass_chart(pass_, 2, 43) == (
        [
            "loads           │00001111            │  40%",
            "computing       │    00  1111110.    │  46%",
            "gradients out   │      ~       11    │  15%",
            "gradients added │                1111│  20%",
            "                 ╵0        ╵1,000 ms",
        ],
        "0-1: sub-models 0 to 1, forward, then backward; ~ values between sub-models; "
        ". at work for a part of that time",
    )


@pytest.mark.parametrize("width", [40, 80, 300])
def test_a_row_is_marked_for_as_much_of_the_time_as_its_lane_works(width: int) -> None:
    """Also where a column is many visits."""
    lines, _ = pass_chart(long_pass(300), 300, width)
    assert max(map(len, lines)) <= width
    for row in (line for line in lines if "│" in line):
        _, columns, share = row.split("│")
        marked = sum(column not in " ." for column in columns)
        assert marked / len(columns) == pytest.approx(float(share.strip("%")) / 100, abs=0.05)


def test_hundreds_of_sub_models_share_symbols() -> None:
    (_, computing, *_), legend = pass_chart(long_pass(150), 150, 140)
    symbols = digits + ascii_lowercase + ascii_uppercase
    numbers = [symbols.index(symbol) for symbol in computing.split("│")[1] if symbol in symbols]
    turn = numbers.index(149 // 3)
    assert numbers == sorted(numbers[:turn]) + sorted(numbers[turn:], reverse=True)
    assert set(numbers) == set(range(50))
    assert legend.startswith("0-9, a-z, A-N: sub-models 0 to 149, 3 to a symbol, forward")
