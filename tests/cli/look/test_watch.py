import asyncio
import contextlib
import io
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from atom.base.reasons import Reason
from atom.cli.app import main
from atom.cli.look import watch
from atom.cli.look.loss_chart import ASCII, BRAILLE, LossChart, dots
from atom.cli.look.watch import Screen, chart_rows, footer, frame, plain_line
from atom.cli.shell.exit_codes import ExitCode
from atom.cli.shell.terminal import THEME, draws
from atom.dashboard.feed import Seen
from atom.swarm.chain.commit import MAX_LOSS
from atom.swarm.records.lease import EndedAttempt, PeerState
from tests.cli.swarm_sights import sight


def drawn(renderable: object, width: int, height: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, height=height, theme=THEME).print(renderable)
    return file.getvalue().splitlines()


def test_a_reader_that_goes_ends_the_lines_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `atom watch | head`; else what a group of tasks raises is a fault of ours."""

    class Feed:
        async def follow(self) -> None:
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def following(*_: object) -> AsyncIterator[tuple[Feed, None]]:
        yield Feed(), None

    async def said(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(watch, "following", following)
    monkeypatch.setattr(watch, "_watch_plain", said)
    with pytest.raises(BrokenPipeError):
        asyncio.run(watch._watch("", None, Console(file=io.StringIO())))


def test_a_line_of_the_log() -> None:
    line = plain_line(sight())
    assert line == "tiny  round 7  2 peers  21/64 mini-batches  200 tokens/s  loss 2.5000"


def test_a_round_that_came_to_nothing_is_told_until_it_is_committed() -> None:
    view = sight(
        ended_attempts=(EndedAttempt(7, Reason.EARLY), EndedAttempt(8, Reason.RING_BROKEN))
    ).view
    told = footer(Seen(view, None, ()))
    assert "round 8: no result, ring-broken" in drawn(told, 80, 1)[0]
    assert "Ctrl-C" in drawn(footer(Seen(replace(view, round=8), None, ())), 80, 1)[0]


@pytest.mark.parametrize("height", [6, 12])
def test_a_problem_is_seen_on_the_smallest_screen(height: int) -> None:
    shown = sight(3)
    lines = drawn(
        Screen(Seen(shown.view, None, (), "the DHT is silent"), shown, height), 40, height
    )
    assert "the DHT is silent" in "".join(lines[:height])
    assert max(map(len, lines)) <= 40


def test_without_an_address_the_daemon_here_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "--state", str(tmp_path)]) == ExitCode.CONTROL
    assert "no daemon runs in" in capsys.readouterr().err


@pytest.mark.parametrize("height", [18, 24, 50])
@pytest.mark.parametrize("peers", [1, 3])
def test_what_is_below_stays_on_the_screen(height: int, peers: int) -> None:
    losses = [(float(number), 5.0 / number) for number in range(1, 30)]
    rows = chart_rows(height, peers, other_rows=1)
    lines = drawn(frame(sight(peers), losses, None, "the footer", rows), 100, height)
    assert "the footer" in "".join(lines[:height])


def test_a_crowd_is_cut_and_counted() -> None:
    shown = sight(30)
    lines = drawn(Screen(Seen(shown.view, None, ()), shown, 24), 80, 24)
    assert len(lines) <= 24
    assert "and 17 more" in "".join(lines)
    assert "Ctrl-C" in "".join(lines)


@pytest.mark.parametrize("width", [44, 80, 120])
@pytest.mark.parametrize(("height", "peers"), [(24, 30), (24, 6), (40, 10)])
def test_what_is_wrong_with_peers_pushes_nothing_off_the_screen(
    width: int, height: int, peers: int
) -> None:
    whole = sight(peers)
    troubled = [
        replace(each, void_passes=12, void_cause="loss-not-finite") for each in whole.view.peers
    ]
    shown = replace(whole, view=replace(whole.view, peers=tuple(troubled)))
    losses = tuple((number, 5.0 / number) for number in range(1, 30))
    lines = drawn(Screen(Seen(shown.view, None, losses), shown, height), width, height)
    assert len(lines) <= height
    assert "Ctrl-C" in "".join(lines)
    assert any("void" in line for line in lines)


def test_who_has_left_takes_no_row_from_who_is_there() -> None:
    whole = sight(30)
    gone = [
        replace(each, state=PeerState.LEFT if number < 20 else each.state)
        for number, each in enumerate(whole.view.peers)
    ]
    shown = replace(whole, view=replace(whole.view, peers=tuple(gone)))
    said = "".join(drawn(Screen(Seen(shown.view, None, ()), shown, 24), 80, 24))
    assert [each.peer_id[-6:] in said for each in gone[20:]] == [True] * 10
    assert 0 < said.count(" left ") < 20


@pytest.mark.parametrize("kind", ["dumb", "xterm"])
def test_a_dumb_terminal_is_written_to_as_a_file(kind: str) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": kind})
    assert draws(console) == (kind == "xterm")


@pytest.mark.parametrize(
    ("amount", "title"),
    [((1880, 234, 0), "loss (nats per token) by round"), ((0, 20, 0), "loss by round")],
)
def test_the_loss_has_a_unit_where_there_is_text(amount: tuple[int, int, int], title: str) -> None:
    shown = sight()
    shown = replace(shown, view=replace(shown.view, data_amount=amount))
    lines = drawn(frame(shown, [(1.0, 2.0), (2.0, 1.5)]), 80, 40)
    assert title in [line.strip() for line in lines]


def test_dots_go_from_corner_to_corner() -> None:
    points, spans = [(0.0, 1.0), (10.0, 0.0)], ((0.0, 10.0), (0.0, 1.0))
    assert dots(points, *spans, columns=4, rows=2, grain=BRAILLE) == ["⠑⢄⠀⠀", "⠀⠀⠑⢄"]
    assert dots(points, *spans, columns=4, rows=2, grain=ASCII) == ["'.  ", "  '."]


def test_a_terminal_that_knows_only_ascii_gets_a_chart_too() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=60, height=40, theme=THEME)
    console.print(LossChart([(1.0, 5.0), (2000.0, 2.0)]))
    file.seek(0)
    first, *_, axis = file.read().splitlines()
    assert first.startswith("  5.00 |'")
    assert axis.split() == ["1", "2,000"]


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1.0, math.nan)],
        [(1.0, math.inf), (2.0, 3.0)],
        [(1.0, -MAX_LOSS), (2.0, MAX_LOSS)],
        [(1.0, MAX_LOSS), (2.0, MAX_LOSS)],
        [(float(2**62), 3.0), (float(2**62 + 1), 2.0)],
    ],
)
def test_a_chart_of_odd_points_draws_something_or_nothing(
    points: list[tuple[float, float]],
) -> None:
    lines = drawn(LossChart(points), 60, 40)
    assert len(lines) in (0, 7)


def test_a_flat_loss_is_drawn() -> None:
    lines = drawn(LossChart([(1.0, 2.0), (2.0, 2.0)]), 60, 40)
    assert any(character > "⠀" for character in "".join(lines) if character >= "⠀")


def test_the_chart_ends_with_what_is_there_however_long_the_run_goes_on() -> None:
    losses = [(float(number), 5.0 / number) for number in range(1, 30)]
    lines = drawn(frame(replace(sight(), rounds=10_000), losses), 100, 40)
    axis = next(line for line in lines if line.split() == ["1", "29"])
    newest = lines[lines.index(axis) - 1].rstrip("⠀ ")
    assert len(newest) > 90
