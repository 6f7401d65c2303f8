import io

import pytest
from rich.console import Console

from atom.cli.shell.progress_bars import Bars, Lines, Step, rate_text
from atom.daemon.console import BYTES


def console(**of_terminal: bool) -> tuple[Console, io.StringIO]:
    screen = io.StringIO()
    return Console(file=screen, width=100, highlight=False, **of_terminal), screen


class Told:
    """Lines of one step of 3,600 MiB, one per second."""

    def __init__(self, seconds: int, of: int = 3600) -> None:
        plain, screen = console()
        now = [1000.0]
        lines = Lines(plain, lambda: now[0])
        for second in range(seconds + 1):
            now[0] = 1000.0 + second
            lines.show(Step("tokenising", second << 20, of << 20, BYTES))
        self.lines = screen.getvalue().splitlines()


def test_where_nobody_sees_a_bar_a_line_now_and_then_says_how_far_and_how_fast() -> None:
    told = Told(100).lines
    assert told[0] == "tokenising: 0%, 1.0 MiB/s"
    assert len(told) == 5, "after 2, 6, 14, 30, 62 s"
    assert len(Told(3599).lines) < 70, "one a minute"


def test_what_was_said_is_ended_and_what_was_short_needs_no_word() -> None:
    assert Told(5, of=5).lines == ["tokenising: 40%, 1.0 MiB/s", "tokenising: 100%, 1.0 MiB/s"]
    assert Told(1, of=1).lines == []
    assert Told(0, of=0).lines == [], "nothing to do"


def test_a_step_that_comes_again_begins_anew() -> None:
    plain, screen = console()
    now = [0.0]
    lines = Lines(plain, lambda: now[0])
    for at, done in ((0, 0), (3, 9), (4, 10), (100, 0), (101, 9), (101.5, 10)):
        now[0] = at
        lines.show(Step("checking", done, 10, "rounds"))
    assert screen.getvalue().splitlines() == [
        "checking: 90%, 3 rounds/s",
        "checking: 100%, 2.5 rounds/s",
    ]


def test_a_step_that_breaks_off_is_not_said_to_be_done() -> None:
    plain, screen = console()
    now = [0.0]
    lines = Lines(plain, lambda: now[0])
    for at, done, total in ((0, 0, 5), (3, 2, 5), (4, 2, 0), (5, 0, 0), (6, 0, 9), (9, 3, 9)):
        now[0] = at
        lines.show(Step("replaying", done, total, "rounds"))
    assert screen.getvalue().splitlines() == [
        "replaying: 40%, 0.67 rounds/s",
        "replaying: broke off after 2 rounds",
        "replaying: 33%, 1 rounds/s",
    ]


@pytest.mark.parametrize(
    ("per_s", "unit", "text"),
    [
        (None, BYTES, ""),
        (0.0, "rounds", ""),
        (12.3 * 2**20, BYTES, "12.3 MiB/s"),
        (1234.5, "rounds", "1,234 rounds/s"),
        (0.25, "layers", "0.25 layers/s"),
    ],
)
def test_rates(per_s: float | None, unit: str, text: str) -> None:
    assert rate_text(per_s, unit) == text


def test_bars_leave_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen, shown = console(force_terminal=True)
    bars = Bars(screen)
    bars.show(Step("reading", 1, 2, BYTES))
    bars.show(Step("writing", 1, 2, "files"))
    bars.show(Step("reading", 2, 2, BYTES))
    bars.close()
    assert "reading" in shown.getvalue()
    assert "\x1b[3" not in shown.getvalue(), "no colours where none are wanted"
    assert shown.getvalue().count("\x1b[?25l") == shown.getvalue().count("\x1b[?25h") == 1


def test_what_cannot_be_counted_is_no_line() -> None:
    plain, screen = console()
    now = [0.0]
    lines = Lines(plain, lambda: now[0])
    for now[0], done in ((0.0, 0), (10.0, 1)):
        lines.show(Step("entering the DHT", done, 1, "nodes"))
    assert screen.getvalue() == ""


def test_a_bar_of_what_cannot_be_counted_shows_no_share() -> None:
    screen, shown = console(force_terminal=True)
    bars = Bars(screen)
    bars.show(Step("entering the DHT", 0, 1, "nodes"))
    bars.show(Step("entering the DHT", 1, 1, "nodes"))
    assert "entering the DHT" in shown.getvalue()
    assert "%" not in shown.getvalue()
    assert "--:--" not in shown.getvalue()
