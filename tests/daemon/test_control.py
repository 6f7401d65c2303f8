"""The control API over a real socket."""

import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from atom.base.errors import ControlError, DeviceError
from atom.daemon import control
from atom.daemon.control import ControlServer, ask
from atom.daemon.state_directory import StateDirectory
from tests.read_only_disk import turn_read_only


class Target:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.reloads = lambda: [{"key": "a.b", "live": True}]

    def info(self) -> Mapping[str, Any]:
        return {"run": "demo", "round": 3}

    def pause(self) -> str:
        self.calls.append("pause")
        return "paused"

    def resume(self) -> str:
        self.calls.append("resume")
        return "resumed"

    def reload(self) -> Sequence[Mapping[str, Any]]:
        return self.reloads()

    def leave(self, deadline_s: float | None) -> str:
        self.calls.append(deadline_s)
        return "leaving"


def made(root: Path) -> StateDirectory:
    """A state directory that was made as a daemon makes it, and is in use by none."""
    state = StateDirectory(root)
    state.lock()
    state.unlock()
    return state


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Target, Path]]:
    target, state = Target(), made(tmp_path)
    server = ControlServer(target, state)
    server.start()
    yield target, state.control_socket
    server.close()


def test_every_command_arrives(served: tuple[Target, Path]) -> None:
    target, path = served
    assert ask(path, "info") == {"run": "demo", "round": 3}
    assert (ask(path, "pause"), ask(path, "resume")) == ("paused", "resumed")
    target.reloads = lambda: [{}] * 2_000_000
    assert ask(path, "reload") == [{}] * 2_000_000, "larger than gRPC's usual limit"
    assert ask(path, "leave", 12.5) == "leaving"
    ask(path, "leave", None)
    assert target.calls == ["pause", "resume", 12.5, None]


def test_a_refusal_arrives_with_its_hint(served: tuple[Target, Path]) -> None:
    target, path = served

    def refuse() -> list[Any]:
        raise DeviceError("bad is bad", "say something else")

    target.reloads = refuse
    with pytest.raises(DeviceError, match="bad is bad") as refused:
        ask(path, "reload")
    assert refused.value.hint == "say something else"


def test_a_daemon_that_dies_or_freezes_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_TIMEOUT_S", 0.05)
    path = tmp_path / "control.sock"
    with pytest.raises(ControlError, match="accepts no commands now") as nobody:
        ask(path, "reload")
    assert "starting or stopping" in nobody.value.hint
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(path))
        frozen.listen()
        with pytest.raises(ControlError, match="accepts no commands now"):
            ask(path, "reload")


class Faulty(Target):
    def resume(self) -> str:
        raise RuntimeError("a slip")


def test_a_daemon_that_fails_or_is_older_is_not_said_to_be_away(tmp_path: Path) -> None:
    state, older = made(tmp_path), grpc.server(ThreadPoolExecutor(1))
    server = ControlServer(Faulty(), state)
    server.start()
    path = state.control_socket
    try:
        with pytest.raises(ControlError, match=r"the daemon failed: .*a slip"):
            ask(path, "resume")
    finally:
        server.close()
    older.add_insecure_port(f"unix:{path}")
    older.start()
    try:
        with pytest.raises(ControlError, match="without this command"):
            ask(path, "resume")
    finally:
        older.stop(None).wait()


@pytest.mark.parametrize("name", ["ä\n", "50%25", "#2?", "a, b", "x" * 120])
def test_any_folder_will_do(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC takes some characters of a path for its own, and a socket's path has to be short; the
    path of the temporary folder may be too long as well."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 120)))
    state = made(tmp_path / name)
    state.place_control_socket().write_text("")  # left behind by a daemon that was killed
    server = ControlServer(Target(), state)
    server.start()
    path = StateDirectory(tmp_path / name).control_socket
    try:
        assert path.is_socket(), "where those look who ask whether a daemon listens"
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, "its owner alone may"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert ask(path, "info")["round"] == 3
    finally:
        server.close()
    assert not path.exists()
    assert {path.name for path in state.root.iterdir()} == {".gitignore", "daemon.lock"}
    assert path.parent == state.root or not path.parent.exists(), "no folder is left in /tmp"


def test_an_answer_is_bounded(served: tuple[Target, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_ANSWER_BYTES", 4096)
    served[0].reloads = lambda: [{}] * 2000
    with pytest.raises(ControlError, match="longer than 4,096 bytes"):
        ask(served[1], "reload")


def test_a_disk_that_turned_read_only_lets_it_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ControlServer(Target(), made(tmp_path))
    server.start()
    turn_read_only(monkeypatch)
    server.close()
