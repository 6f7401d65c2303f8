from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from atom.base.errors import ControlError, StorageError
from atom.cli.box.control import find_daemon, find_state
from atom.cli.look import onlooker
from atom.cli.look.onlooker import run_meant
from atom.daemon.state_directory import StateDirectory


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "atom"


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def daemon(root: Path, stack: ExitStack) -> Path:
    """Lock a state directory like a running daemon, and return the path of its socket."""
    kept = StateDirectory(root)
    kept.lock()
    stack.callback(kept.unlock)
    return kept.control_socket


def test_several_are_named(home: Path, held: ExitStack) -> None:
    daemon(home / "one", held)
    daemon(home / "two", held)
    with pytest.raises(ControlError, match="2 daemons are running") as problem:
        run_meant(None, None)
    assert problem.value.message.endswith("one, two")
    each = [f"--state {home / name}" for name in ("one", "two")]
    hint = ["choose one of:", *each, "or give the run's ADDRESS"]
    assert problem.value.hint.splitlines() == hint


def test_a_founder_that_starts_has_no_address_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = {"step": "tokenising, 40%", "join_address": "", "state_directory": "/runs/tiny"}
    monkeypatch.setattr(onlooker, "ask_daemon", lambda state, command: starting)
    with pytest.raises(ControlError, match=r"still starting \(tokenising, 40%\)") as problem:
        run_meant(None, None)
    assert problem.value.hint == "try again in a moment"


def test_a_daemon_that_has_ended_is_nobody(home: Path) -> None:
    with ExitStack() as stack:
        daemon(home / "tiny", stack).touch()
    for state in (None, home / "tiny"):
        with pytest.raises(ControlError, match="no daemon"):
            find_daemon(state)


def test_an_entrance_is_no_daemon_unless_it_is_named(home: Path, held: ExitStack) -> None:
    daemon(home / "_bootstrap", held)
    with pytest.raises(ControlError, match="no daemon"):
        find_daemon(None)
    assert find_daemon(home / "_bootstrap")


def test_of_several_runs_that_are_kept_each_is_offered(home: Path) -> None:
    for name in ("one", "my run"):
        kept = StateDirectory(home / name)
        kept.root.mkdir(parents=True)
        kept.manifest.touch()
    with pytest.raises(StorageError, match=r"2 runs are stored under .*: my run, one") as problem:
        find_state(None)
    each = [f"--state '{home / 'my run'}'", f"--state {home / 'one'}"]
    assert problem.value.hint.splitlines() == ["choose one of:", *each]
    running = StateDirectory(home / "one")
    running.lock()
    try:
        assert find_state(None) == home / "one", "the one whose daemon runs"
    finally:
        running.unlock()
