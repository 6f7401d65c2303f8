"""A daemon's words: data on stdout, notes on stderr, long steps as bars, or a line now and then."""

import io
from collections.abc import Iterable

import pytest
from rich.console import Console

from atom.cli.shell.console import Steps, TerminalConsole


def test_the_address_is_data_and_the_rest_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    console = TerminalConsole()
    console.note("looks [around]")
    console.join_address("/ip4/10.0.0.5/tcp/1/p2p/Qm/run/tiny")
    console.close()
    streams = capfd.readouterr()
    assert streams.out == "join: /ip4/10.0.0.5/tcp/1/p2p/Qm/run/tiny\n"
    assert "looks [around]" in streams.err
    assert "10.0.0.5 can be reached only from this machine or its network" in streams.err


@pytest.mark.parametrize("host", ["ip4/8.8.8.8", "dns4/example.org", "ip6/2606:4700::1"])
def test_a_public_address_needs_no_word(host: str, capfd: pytest.CaptureFixture[str]) -> None:
    console = TerminalConsole()
    console.join_address(f"/{host}/tcp/1/p2p/Qm/run/tiny")
    console.close()
    streams = capfd.readouterr()
    assert host in streams.out
    assert not streams.err


def told(steps: Iterable[tuple[float, int, int]]) -> list[str]:
    """Return the lines of one step without a progress bar: (second, done, total)."""
    screen, now = io.StringIO(), [0.0]
    shown = Steps(Console(file=screen, width=100, highlight=False), lambda: now[0])
    for now[0], done, total in steps:
        shown.show("checking", done, total)
    return screen.getvalue().splitlines()


def test_where_nobody_sees_a_bar_a_line_now_and_then_says_how_far() -> None:
    lines = told((n, n << 20, 100 << 20) for n in range(100))
    assert lines == [f"checking: {n}%" for n in (2, 32, 62, 92)]
    assert told([(0, 0, 1000), (1, 1000, 1000)]) == [], "it was short"
    assert told([(0, 0, 1), (10, 1, 1)]) == [], "one of one is nothing to count"
    again = [(0, 0, 10), (3, 9, 10), (4, 10, 10), (100, 0, 10), (101, 9, 10), (101, 10, 10)]
    assert told(again) == ["checking: 90%"]
    broken_off = [(0, 0, 5), (3, 2, 0), (6, 0, 9), (9, 3, 9)]
    assert told(broken_off) == ["checking: interrupted", "checking: 33%"]


@pytest.mark.parametrize("again", [False, True])
def test_bars_leave_the_terminal_as_it_was(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = io.StringIO()
    steps = Steps(Console(file=screen, width=100, highlight=False, force_terminal=True))
    for _ in range(1 + again):
        steps.show("reading", 1, 2)
        steps.show("entering", 0, 1)
        steps.show("reading", 2, 2)
        steps.close()
    assert "reading" in screen.getvalue()
    assert "\x1b[3" not in screen.getvalue(), "no colours where none are wanted"
    hidden, shown = screen.getvalue().count("\x1b[?25l"), screen.getvalue().count("\x1b[?25h")
    assert hidden == shown == 1 + again
