"""Folder and peers of the demo.

The folder is emptied only if an earlier demo wrote it. Each peer is a daemon in its own process,
which the system kills when the demo ends.
"""

import contextlib
import importlib.resources
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

from atom.base.errors import AtomError, StorageError
from atom.base.files import child_environment
from atom.daemon.state_directory import StateDirectory
from atom.swarm.dht.p2pd import die_with_parent
from atom.swarm.identity import Identity

FINISHED, KILLED = "finished", "killed"
TAIL_LINES = 15
_MARKER = ".atom-demo"
_ELSEWHERE = "name another folder with --directory DIR"
_PEER_FILE = """\
# Every peer of the demo: one thread each, reachable from this machine alone.
[device]
use = "cpu"
memory = "16 MiB"             # so little that the model is swapped in four pieces
cpu_threads = 1

[network]
listen = "127.0.0.1:0"
"""

Event = dict[str, Any]


class PeerFailed(AtomError):
    """Error of a daemon that ended unexpectedly, or is late; the hint shows the end of its log."""


class DemoPeer:
    """One daemon of the demo. Call `start`, `look` again and again, and at the end `remove`."""

    def __init__(self, root: Path, number: int) -> None:
        """Create the peer's state directory and key in the folder of the demo.

        All peers share one folder of tokens, so that the text is tokenised only once.
        """
        self.name, self.state = f"peer {number}", root / f"peer-{number}"
        self._options = ("--peer", str(root / "peer.toml"), "--state", str(self.state))
        self.log = root / f"peer-{number}.log"
        self.state.mkdir()
        (self.state / "tokens").symlink_to(root / "tokens")
        self.peer_id = Identity.load_or_create(StateDirectory(self.state).identity).peer_id
        self.process: subprocess.Popen[str] | None = None
        """Process of the daemon; None until it is started."""
        self.fate = ""
        """How the daemon ended; empty until then."""
        self.events: list[Event] = []
        """Events that its daemon had written at the last `look`."""

    def start(self, *arguments: str) -> None:
        """Start `atom ARGUMENTS…` in a process."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "atom", *arguments, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=child_environment() | {"NO_COLOR": "1"},
                start_new_session=True,  # the demo alone handles Ctrl-C
                preexec_fn=die_with_parent,
            )

    def join_address(self) -> str:
        """Wait for the first line of a founder's stdout, and return the address in it.

        Raises:
            PeerFailed: The daemon ended before that line.
        """
        assert self.process is not None, "not started"
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise self.failure(f"ended with exit code {self.process.wait()}")
        return line.removeprefix("join: ").strip()

    def look(self) -> None:
        """Read the daemon's events, and set its fate if it has ended.

        Raises:
            PeerFailed: The daemon ended with an error.
        """
        code = None if self.process is None else self.process.poll()
        self.events = read_events(StateDirectory(self.state).events)
        if code and not self.fate:
            raise self.failure(f"ended with exit code {code}")
        if code == 0:
            self.fate = FINISHED

    def kill(self) -> None:
        """Send SIGKILL to the daemon alone: its child processes have to notice by themselves."""
        assert self.process is not None, "not started"
        self.fate = KILLED
        self.process.kill()

    def remove(self) -> None:
        """Send SIGKILL to the daemon and its process group, and wait for the daemon's end."""
        if self.process is not None:
            with self.process, contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def failure(self, what: str) -> PeerFailed:
        """Return an exception that says what happened, with the end of the log as its hint."""
        with self.log.open(encoding="utf-8", errors="replace") as file:
            last = [line.rstrip() for line in deque(file, maxlen=TAIL_LINES)]
        return PeerFailed(f"{self.name} {what}", "\n".join((f"the end of {self.log}:", *last)))


def read_events(path: Path) -> list[Event]:
    """Return the events in the complete lines of an event log; none if there is no log."""
    raw = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in raw[: raw.rfind(b"\n") + 1].splitlines()]


def prepare(root: Path, count: int) -> list[DemoPeer]:
    """Empty the demo's folder, and write `run.toml`, `peer.toml` and the keys of all peers.

    The run file trusts all peers, so that each one votes as soon as it takes part.

    Args:
        root: Folder of the demo.
        count: Number of peers that the demo starts, late joiners included.

    Raises:
        StorageError: The folder has other content, or cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()) and not (root / _MARKER).exists():
            what = f"{root} is not empty, and its content is not a demo's"
            raise StorageError(what, _ELSEWHERE)
        shutil.rmtree(root)
        (root / "tokens").mkdir(parents=True)
        (root / _MARKER).touch()
        (root / "peer.toml").write_text(_PEER_FILE, encoding="utf-8")
        peers = [DemoPeer(root, number + 1) for number in range(count)]
        trusted = json.dumps([peer.peer_id for peer in peers])
        run = run_text().replace("[swarm]\n", f"[swarm]\ntrusted = {trusted}\n")
        (root / "run.toml").write_text(run, encoding="utf-8")
    except OSError as problem:
        what = f"cannot use {root} for the demo: {problem.strerror}"
        raise StorageError(what, _ELSEWHERE) from None
    return peers


def run_text() -> str:
    """Return the text of the demo's run file."""
    packaged = importlib.resources.files("atom.cli.demo").joinpath("demo.toml")
    return packaged.read_text(encoding="utf-8")
