"""`atom reload` as its user sees it: a served control API, no daemon behind it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from atom.base.errors import DeviceError, UserError
from atom.cli.app import main
from atom.cli.shell.failures import ExitCode
from atom.daemon.control import ControlServer
from atom.daemon.state_directory import StateDirectory

CHANGED = [{"key": "network.upload", "live": True}, {"key": "network.listen", "live": False}]


class Daemon:
    """Answers to `reload` alone."""

    def __init__(self) -> None:
        self.changed: Sequence[Mapping[str, Any]] = CHANGED
        self.refusal: UserError | None = None

    def reload(self) -> Sequence[Mapping[str, Any]]:
        if self.refusal is not None:
            raise self.refusal
        return self.changed


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon, directory = Daemon(), StateDirectory(tmp_path)
    directory.lock()
    server = ControlServer(daemon, directory.control_socket)  # type: ignore[arg-type]
    server.start()
    yield daemon
    server.close()
    directory.unlock()


def reload(tmp_path: Path) -> int:
    return main(["reload", "--state", str(tmp_path)])


def test_what_has_changed_is_named(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reload(tmp_path) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["network.upload", "network.listen  # changes at a restart"]
    daemon.changed = []
    assert reload(tmp_path) == 0
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("", "nothing has changed in the peer file\n")


def test_a_refusal_is_an_error_with_its_hint(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.refusal = DeviceError("there is 1 MB, and 2 MB would do", "allow more")
    assert reload(tmp_path) == ExitCode.DEVICE
    streams = capsys.readouterr()
    assert streams.err == "error: there is 1 MB, and 2 MB would do\nhint:  allow more\n"
    assert streams.out == ""
