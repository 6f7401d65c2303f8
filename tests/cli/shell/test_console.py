import pytest

from atom.cli.shell.console import TerminalConsole
from atom.cli.shell.failures import ExitCode
from atom.cli.train.daemons import code_of
from atom.daemon.peer.lifecycle import Ending


def test_the_address_is_data_and_the_rest_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    console = TerminalConsole()
    console.note("looks [around]")
    console.join_address("/ip4/10.0.0.5/tcp/1/p2p/Qm/run/tiny")
    console.close()
    streams = capfd.readouterr()
    assert streams.out == "join: /ip4/10.0.0.5/tcp/1/p2p/Qm/run/tiny\n"
    assert "looks [around]" in streams.err


def test_bars_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console = TerminalConsole()
    for done in (0, 500, 1000):
        console.progress("tokenising", done, 1000)
    console.progress("fetching", 10, 20)
    console.close()
    streams = capfd.readouterr()
    assert "tokenising" in streams.err
    assert "\x1b[?25h" in streams.err, "the cursor is shown again"
    assert streams.out == ""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (Ending.ROUNDS_REACHED, ExitCode.OK),
        (Ending.LEFT, ExitCode.OK),
        (Ending.LEFT_LATE, ExitCode.LEFT_LATE),
    ],
)
def test_how_a_daemon_ended(ending: Ending, code: ExitCode) -> None:
    assert code_of(ending) == code
