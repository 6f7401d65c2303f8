"""`atom reload` as its user sees it. `tests/daemon/test_control.py` tests the messages."""

from typing import Any

import pytest

from atom.base.errors import DeviceError
from atom.cli.app import main
from atom.cli.box import control
from atom.cli.shell.failures import ExitCode


def test_what_has_changed_is_named_and_a_refusal_told_with_its_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed: list[dict[str, Any]] = [
        {"key": "device.cpu_threads", "live": True},
        {"key": "network.listen", "live": False},
    ]
    monkeypatch.setattr(control, "ask_daemon", lambda state, command: changed)
    assert main(["reload"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["device.cpu_threads", "network.listen  # takes effect at a restart"]
    changed.clear()
    assert main(["reload"]) == 0
    assert capsys.readouterr().err == "no key has changed in the peer file\n"

    def refuse(state: object, command: str) -> None:
        raise DeviceError("there is 1 MB, and 2 MB would do", "allow more")

    monkeypatch.setattr(control, "ask_daemon", refuse)
    assert main(["reload"]) == ExitCode.DEVICE
    streams = capsys.readouterr()
    assert streams.err == "error: there is 1 MB, and 2 MB would do\nhint:  allow more\n"
    assert streams.out == ""
