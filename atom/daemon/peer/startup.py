"""Startup of a daemon: from the lock of its state directory until it trains, commands are answered.

Reading a text, tracing a large model or fetching code may take minutes. The owner sees the step,
and may pause or end the daemon meanwhile.
"""

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from atom.base.errors import ControlError
from atom.daemon.console import Console
from atom.daemon.control import ControlServer
from atom.daemon.owner.pauses import put_mark, remove_mark
from atom.daemon.peer.box import Box
from atom.swarm.records.lease import PeerState

_ANSWER_S = 0.5
"""Time for the answer to a request to leave, before the process ends."""


class Startup:
    """Console that remembers the present step, and the commands of a daemon that is starting."""

    def __init__(self, box: Box, run: str, address: str) -> None:
        self._console: Console = box.console
        self._state, self._run, self._address = box.state, run, address
        self._step = "preparing"

    # ---- output of the daemon, from any thread

    def join_address(self, address: str) -> None:
        self._console.join_address(address)

    def note(self, text: str) -> None:
        self._step = text
        self._console.note(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self._step = f"{what}, {done / total:.0%}" if total > 1 else what
        self._console.progress(what, done, total)

    # ---- commands of the control API, from any thread

    def info(self) -> Mapping[str, Any]:
        """Return the present step, and the figures that are known before the peer exists."""
        return {
            "run": self._run,
            "state": PeerState.STARTING,
            "step": self._step,
            "join_address": self._address,
            "state_directory": str(self._state.root),
        }

    def pause(self) -> str:
        """Pause from the end of the startup on, and return text for the owner."""
        return f"it is starting, and pauses before it trains{put_mark(self._state.paused)}"

    def resume(self) -> str:
        """Remove a pause, and return text for the owner."""
        return f"it trains after its start{remove_mark(self._state.paused)}"

    def reload(self) -> Sequence[Mapping[str, Any]]:
        """Refuse to read the peer file again: a part of it has been applied already."""
        raise ControlError(
            f"the daemon is starting: {self._step}",
            "repeat the command once `atom info` shows a round; or end the daemon with `atom leave`"
            " and start it again",
        )

    def leave(self, deadline_s: float | None) -> str:
        """End the process after the answer: no work is counted yet, and no file is incomplete."""
        threading.Timer(_ANSWER_S, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return "leaving now: it has not begun to train"


def answering(stack: ExitStack, box: Box, run: str, address: str = "") -> tuple[Box, ControlServer]:
    """Answer the owner's commands from now on.

    Args:
        stack: ends the answers, and then unlocks the state directory.
        box: this machine's side, whose state directory is locked.
        run: name of the run.
        address: join address, if it is known.

    Returns:
        (box whose console also records the current step, server whose target the peer later
            replaces).

    Raises:
        StorageError: the control socket cannot be made.
    """
    stack.callback(box.state.unlock)
    startup = Startup(box, run, address)
    control = ControlServer(startup, box.state)
    control.start()
    stack.callback(control.close)
    return replace(box, console=startup), control
