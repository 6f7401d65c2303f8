"""A daemon that is starting answers its owner."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from atom.base.errors import ControlError
from atom.cli.box.info_page import rows
from atom.daemon.control import ControlServer, ask
from atom.daemon.peer import setup
from atom.daemon.peer.box import Box, open_box
from tests.daemon.silence import Notes


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[tuple[Box, ControlServer]]:
    with ExitStack() as stack:
        box = open_box("tiny", None, tmp_path / "state", Notes())
        yield setup.answering(stack, box, "tiny", "/ip4/…")


def asked(box: Box, command: str, *arguments: object) -> Any:
    return ask(box.state.control_socket, command, *arguments)


@pytest.mark.parametrize(
    ("done", "total", "step"),
    [(2, 5, "reading, 40%"), (0, 1, "reading"), (1, 1, "reading"), (0, 0, "reading"),
     (999, 1000, "reading, 100%")],
)  # fmt: skip
def test_the_step_is_told(
    done: int, total: int, step: str, starting: tuple[Box, ControlServer]
) -> None:
    box, _ = starting
    assert asked(box, "info")["state"] == "starting"
    box.console.note("tracing the model")
    assert asked(box, "info")["step"] == "tracing the model"
    box.console.progress("reading", done, total)
    info = asked(box, "info")
    assert dict(rows(info)) == {
        "run": "tiny", "state": "starting", "step": step, "directory": str(box.state.root),
    }  # fmt: skip
    assert info["join_address"] == "/ip4/…"


def test_a_pause_holds_from_the_start_on(starting: tuple[Box, ControlServer]) -> None:
    box, _ = starting
    assert "pauses before it trains" in asked(box, "pause")
    assert box.state.paused.exists()
    assert "trains" in asked(box, "resume")
    assert not box.state.paused.exists()


def test_a_reload_is_refused_with_the_step(starting: tuple[Box, ControlServer]) -> None:
    box, _ = starting
    box.console.note("tracing the model")
    with pytest.raises(ControlError, match="starting: tracing the model"):
        asked(box, "reload")


def test_a_daemon_that_leaves_answers_before_it_ends(
    starting: tuple[Box, ControlServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, killed = threading.Event(), list[tuple[int, int]]()

    def kill(process: int, number: int) -> None:
        killed.append((process, number))
        ended.set()

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(setup, "_ANSWER_S", 0.0)
    assert "leaving now" in asked(starting[0], "leave", None)
    assert ended.wait(10)
    assert killed == [(os.getpid(), signal.SIGTERM)]


def test_the_peer_answers_as_soon_as_it_exists(starting: tuple[Box, ControlServer]) -> None:
    class Trained:
        def info(self) -> dict[str, int]:
            return {"round": 7}

    box, control = starting
    control.target = Trained()
    assert asked(box, "info") == {"round": 7}
