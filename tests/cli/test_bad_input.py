"""User errors: an exit code, `error:`, `hint:`, and never a traceback."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from atom.base.errors import ConfigError
from atom.cli.app import main
from atom.cli.shell.failures import ExitCode
from tests.cli.good_run import GOOD_RUN

PEER_ID = "12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"


def refused(arguments: list[str], code: ExitCode, capsys: pytest.CaptureFixture[str]) -> str:
    """All that is said."""
    assert main(arguments) == code
    streams = capsys.readouterr()
    assert streams.err.startswith("error: ")
    assert "\nhint:  " in streams.err
    assert "Traceback" not in streams.err
    assert streams.out == ""
    return streams.err


def test_the_home_of_an_unknown_user_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = 'tokenizer = "~nobody-here/x.json"\nmax_bytes'
    (folder / "bad.toml").write_text(GOOD_RUN.replace("max_bytes", absent))
    command = ["start", "bad.toml", "--state", "state"]
    assert "~nobody-here/x.json" in refused(command, ExitCode.CONFIG, capsys)


def test_what_a_command_line_gets_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(folder))  # which no shell puts in after `=`
    begun = ["start", "run.toml", "--from=~/absent"]
    assert str(folder / "absent") in refused(begun, ExitCode.CONFIG, capsys)
    assert "did you mean" in refused(["stat"], ExitCode.USAGE, capsys)
    assert "--json" in refused(["status", "--jsn", "x"], ExitCode.USAGE, capsys)


def test_nobody_listens_at_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, not listening: no other process gets this port
        address = (
            f"/ip4/127.0.0.1/tcp/{free.getsockname()[1]}/p2p/{PEER_ID}/run/tiny/owner/{PEER_ID}"
        )
        assert "connection refused" in refused(["status", address], ExitCode.ADDRESS, capsys)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], int]:
    """Return a function that gives the exit code of `atom status` for an exception."""

    def ended(fault: BaseException) -> int:
        def command(*_given: object) -> None:
            raise fault

        monkeypatch.setattr("atom.cli.look.status.show_status", command)
        return main(["status", "x"])

    return ended


def test_an_unexpected_fault_is_told_with_its_traceback(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(RuntimeError("no \udcff")) == ExitCode.FAULT
    before, _, said = capsys.readouterr().err.partition("error: ")
    assert before.startswith("Traceback"), "above, because the last lines are read first"
    assert said.startswith("unexpected fault: RuntimeError: no �\nhint:  this is a bug")


def test_what_a_terminal_would_obey_is_not_shown(
    failing: Callable[[BaseException], int], capsys: pytest.CaptureFixture[str]
) -> None:
    odd = ConfigError("m holds tensors that the model lacks: w\x1b[2J\x9b", "a\tb \udcff\nsecond")
    assert failing(odd) == ExitCode.CONFIG
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "error: m holds tensors that the model lacks: w�[2J�"
    assert [line.split() for line in shown[1:]] == [["hint:", "a", "b", "�"], ["second"]]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (OSError(28, "No space left on device", "/data/x"), ExitCode.STORAGE),
        (MemoryError("the host cannot give 4096 bytes"), ExitCode.SHORTAGE),
        (PermissionError(13, "Permission denied", "/srv/x"), ExitCode.STORAGE),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_faults_that_are_the_worlds(
    fault: BaseException,
    code: ExitCode,
    failing: Callable[[BaseException], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert failing(fault) == code
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert "unexpected" not in shown
