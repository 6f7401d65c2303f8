"""Long steps on stderr: bars on a terminal, a line now and then anywhere else."""

import io
from collections.abc import Iterable

import pytest
from rich.console import Console

from atom.cli.shell.console import Steps
from atom.daemon.console import BYTES


def told(steps: Iterable[tuple[float, int, int]], unit: str = "rounds") -> list[str]:
    """Lines of one step, where nobody sees a bar: (second, done, total)."""
    screen, now = io.StringIO(), [0.0]
    shown = Steps(Console(file=screen, width=100, highlight=False), lambda: now[0])
    for now[0], done, total in steps:
        shown.show("checking", done, total, unit)
    return screen.getvalue().splitlines()


def test_where_nobody_sees_a_bar_a_line_now_and_then_says_how_far() -> None:
    lines = told(((n, n << 20, 100 << 20) for n in range(100)), BYTES)
    assert lines == [f"checking: {n}%" for n in (2, 32, 62, 92)]


def test_what_was_short_needs_no_word() -> None:
    assert told([(0, 0, 1000), (1, 1000, 1000)]) == []
    assert told([(0, 0, 0)]) == [], "nothing to do"


def test_a_step_that_comes_again_begins_anew() -> None:
    lines = told([(0, 0, 10), (3, 9, 10), (4, 10, 10), (100, 0, 10), (101, 9, 10), (101, 10, 10)])
    assert lines == ["checking: 90%"]


def test_a_step_that_breaks_off_is_not_said_to_be_done() -> None:
    assert told([(0, 0, 5), (3, 2, 0), (6, 0, 9), (9, 3, 9)]) == [
        "checking: broke off", "checking: 33%",
    ]  # fmt: skip


def test_what_cannot_be_counted_is_no_line() -> None:
    assert told([(0, 0, 1), (10, 1, 1)]) == []


@pytest.mark.parametrize("again", [False, True])
def test_bars_leave_the_terminal_as_it_was(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = io.StringIO()
    steps = Steps(Console(file=screen, width=100, highlight=False, force_terminal=True))
    for _ in range(1 + again):
        steps.show("reading", 1, 2, BYTES)
        steps.show("entering", 0, 1, "nodes")
        steps.show("reading", 2, 2, BYTES)
        steps.close()
    assert "reading" in screen.getvalue()
    assert "\x1b[3" not in screen.getvalue(), "no colours where none are wanted"
    hidden, shown = screen.getvalue().count("\x1b[?25l"), screen.getvalue().count("\x1b[?25h")
    assert hidden == shown == 1 + again
