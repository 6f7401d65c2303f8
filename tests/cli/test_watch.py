import io
import math

import pytest
from rich.console import Console
from swarm_sights import sight

from atom.cli.loss_chart import LossChart, dots
from atom.cli.terminal import THEME
from atom.cli.watch import LossHistory, chart_rows, frame, plain_line


def drawn(renderable: object, width: int, height: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, height=height, theme=THEME).print(renderable)
    return file.getvalue().splitlines()


def test_a_line_of_the_log() -> None:
    line = plain_line(sight())
    assert line == "tiny  round 7  2 peers  21/64 mini-batches  200 tokens/s  loss 2.5000"


def test_history_keeps_one_loss_per_round() -> None:
    history = LossHistory()
    for number, loss in [(1, 5.0), (1, 5.0), (2, 4.0), (3, None), (3, 3.5)]:
        history.add(number, loss)
    assert history.points == [(1, 5.0), (2, 4.0), (3, 3.5)]


def test_history_follows_a_chain_that_went_back() -> None:
    history = LossHistory()
    for number, loss in [(1, 5.0), (2, 4.0), (3, 3.0), (2, 4.5)]:
        history.add(number, loss)
    assert history.points == [(1, 5.0), (2, 4.5)]


@pytest.mark.parametrize("height", [18, 24, 50])
@pytest.mark.parametrize("peers", [1, 3])
def test_what_is_below_stays_on_the_screen(height: int, peers: int) -> None:
    losses = [(float(number), 5.0 / number) for number in range(1, 30)]
    rows = chart_rows(height, peers, other_rows=1)
    lines = drawn(frame(sight(peers), losses, None, "the footer", rows), 100, height)
    assert "the footer" in "".join(lines[:height])


def test_dots_go_from_corner_to_corner() -> None:
    falling = dots([(0.0, 1.0), (10.0, 0.0)], (0.0, 10.0), (0.0, 1.0), columns=4, rows=2)
    assert falling == ["⠑⢄⠀⠀", "⠀⠀⠑⢄"]


@pytest.mark.parametrize("points", [[], [(1.0, math.nan)], [(1.0, math.inf), (2.0, 3.0)]])
def test_a_chart_of_odd_points_draws_something_or_nothing(
    points: list[tuple[float, float]],
) -> None:
    lines = drawn(LossChart(points), 60, 40)
    assert len(lines) in (0, 7)


def test_a_flat_loss_is_drawn() -> None:
    lines = drawn(LossChart([(1.0, 2.0), (2.0, 2.0)], last_round=10), 60, 40)
    assert any(character > "⠀" for character in "".join(lines) if character >= "⠀")
