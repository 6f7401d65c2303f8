"""`atom set` as its user sees it: a served control API, no daemon behind it."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from atom.base.errors import ConfigError, DeviceError
from atom.cli.app import main
from atom.cli.shell.exit_codes import ExitCode
from atom.daemon import control_client
from atom.daemon.control import ControlServer
from atom.daemon.state_directory import StateDirectory

SETTINGS = [
    {"key": "network.upload", "value": '"20 Mbit/s"', "live": True, "default": False},
    {"key": "device.memory", "value": "", "live": False, "default": True},
]


class Daemon:
    """Answers to `set` alone."""

    def __init__(self) -> None:
        self.heard: list[Sequence[str]] = []
        self.asked = threading.Event()

    def info(self) -> Mapping[str, Any]:
        self.asked.set()
        return {"setting": "planning how the model is cut"}

    def set(self, assignments: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        self.heard.append(list(assignments))
        if assignments == ["network.upload=3"]:
            raise ConfigError("network.upload: 3 has no unit", "write it with one")
        if assignments == ["device.memory=1 MB"]:
            raise DeviceError("there is 1 MB, and 2 MB would do", "allow more")
        if assignments == ["device.memory="]:
            assert self.asked.wait(60.0)
        return SETTINGS


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon, directory = Daemon(), StateDirectory(tmp_path)
    directory.lock()
    server = ControlServer(daemon, directory.control_socket)  # type: ignore[arg-type]
    server.start()
    yield daemon
    server.close()
    directory.unlock()


def run(tmp_path: Path, *assignments: str) -> int:
    return main(["set", *assignments, "--state", str(tmp_path)])


def test_what_takes_long_is_said(
    daemon: Daemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_client, "_LOOK_S", 0.01)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert run(tmp_path, "device.memory=") == 0
    streams = capsys.readouterr()
    assert "planning how the model is cut" in streams.err
    assert streams.out.startswith("network.upload")


def test_what_was_changed_is_shown_as_in_the_file(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "network.upload=20 Mbit/s", "device.memory=") == 0
    assert run(tmp_path) == 0
    assert daemon.heard == [["network.upload=20 Mbit/s", "device.memory="], []]
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == [
        'network.upload = "20 Mbit/s"',
        "device.memory = (not set)     # default: what is free, changes at a restart",
    ]


def test_a_key_alone_is_shown_and_nothing_is_changed(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "network.upload") == 0
    assert daemon.heard == [[]]
    assert capsys.readouterr().out == 'network.upload = "20 Mbit/s"\n'


@pytest.mark.parametrize(
    ("given", "what", "hint"),
    [
        (["network.upl"], "unknown key 'network.upl'", "did you mean network.upload? `"),
        (["relay"], "unknown key 'relay'", "`atom set` alone shows all keys"),
        (["?", "network.upload=3"], "unknown key '?'", "`atom set` alone shows all keys"),
        (["network.upload", "upl=3"], "'upl=3' is not KEY=VALUE", "such as network.upload="),
        (
            ["device.slot=2 s", "network.upload"],
            "network.upload has no value, and device.slot=2 s has one",
            "change and look one after the other",
        ),
    ],
)
def test_what_is_neither_a_key_nor_a_change(
    given: list[str],
    what: str,
    hint: str,
    daemon: Daemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(tmp_path, *given) == ExitCode.CONFIG
    assert capsys.readouterr().err.startswith(f"error: {what}\nhint:  {hint}")
    assert daemon.heard == []


def test_memory_that_is_too_small_ends_as_a_device_that_is(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "device.memory=1 MB") == ExitCode.DEVICE
    assert capsys.readouterr().err.endswith("hint:  allow more\n")


def test_a_refusal_is_an_error_with_its_hint(
    daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "network.upload=3") == ExitCode.CONFIG
    streams = capsys.readouterr()
    assert streams.err == "error: network.upload: 3 has no unit\nhint:  write it with one\n"
    assert streams.out == ""
