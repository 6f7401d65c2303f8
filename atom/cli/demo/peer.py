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
from atom.base.files import child_environment, expand_home
from atom.daemon.state_directory import StateDirectory, own_identity
from atom.swarm.dht.p2pd import die_with_parent
from atom.swarm.identity import Identity

FINISHED, KILLED = "finished", "killed"
TAIL_LINES = 15
_JOIN = "join: "
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

    def __init__(self, name: str, state: Path) -> None:
        self.name = name
        self.state = state
        self.log = state.parent / f"{state.name}.log"
        self.fate = ""
        """How the daemon ended; empty while it runs."""
        self.events: list[Event] = []
        """Events that its daemon had written at the last `look`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._stdout = state.parent / f"{state.name}.out"

    @property
    def process_id(self) -> int:
        """Process id of the daemon, which has been started."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def peer_id(self) -> str:
        """Peer id of the daemon; empty until its key is on disk."""
        found = own_identity(self.state)
        return "" if found is None else found.peer_id

    @property
    def join_address(self) -> str:
        """Join address that a founder prints first; empty until then."""
        lines = self._stdout.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        addresses = [line for line in lines if line.startswith(_JOIN) and line.endswith("\n")]
        return addresses[0].removeprefix(_JOIN).strip() if addresses else ""

    def start(self, *arguments: str) -> None:
        """Start `atom ARGUMENTS…` in a process."""
        with self.log.open("ab") as log, self._stdout.open("wb") as stdout:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "atom", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=log,
                env=child_environment() | {"NO_COLOR": "1"},
                start_new_session=True,  # the demo alone handles Ctrl-C
                preexec_fn=die_with_parent,
            )

    def look(self) -> None:
        """Read the daemon's events, and set its fate if it has ended.

        Raises:
            PeerFailed: The daemon ended with an error.
        """
        code = None if self._process is None else self._process.poll()
        self.events = read_events(StateDirectory(self.state).events)
        if self.fate or code is None:
            return
        self.fate = FINISHED if code == 0 else f"failed ({code})"
        if code:
            raise self.failure(f"ended with exit code {code}")

    def kill(self) -> None:
        """Send SIGKILL to the daemon alone: its child processes have to notice by themselves."""
        self.fate = KILLED
        os.kill(self.process_id, signal.SIGKILL)

    def remove(self) -> None:
        """Send SIGKILL to the daemon and its process group, and wait for the daemon's end."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process_id, signal.SIGKILL)
            self._process.wait()

    def failure(self, what: str) -> PeerFailed:
        """Return an exception that says what happened, with the end of the log as its hint."""
        with self.log.open(encoding="utf-8", errors="replace") as file:
            last = [line.rstrip() for line in deque(file, maxlen=TAIL_LINES)]
        return PeerFailed(f"{self.name} {what}", "\n".join((f"the end of {self.log}:", *last)))


def read_events(path: Path) -> list[Event]:
    """Return the events in the complete lines of an event log; none if there is no log."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in raw[: raw.rfind(b"\n") + 1].splitlines()]


class Stage:
    """Folder of the demo, and the paths in it. Call `prepare` before using a path."""

    def __init__(self, root: Path) -> None:
        self.root = expand_home(root).absolute()
        self.run_file = self.root / "run.toml"
        self.peer_file = self.root / "peer.toml"
        self._tokens = self.root / "tokens"

    def prepare(self, peers: int) -> None:
        """Empty the folder, and write the files that the peers read.

        The run file trusts all peers, so that each one votes as soon as it takes part.

        Args:
            peers: Number of peers that the demo starts, late joiners included.

        Raises:
            StorageError: The folder has other content, or cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._clear()
            (self.root / _MARKER).touch()
            self.peer_file.write_text(_PEER_FILE, encoding="utf-8")
            self._tokens.mkdir()
            trusted = json.dumps([self._create_peer(number + 1) for number in range(peers)])
            run = run_text().replace("[swarm]\n", f"[swarm]\ntrusted = {trusted}\n")
            self.run_file.write_text(run, encoding="utf-8")
        except OSError as problem:
            what = f"cannot use {self.root} for the demo: {problem.strerror}"
            raise StorageError(what, _ELSEWHERE) from None

    def state(self, number: int) -> Path:
        """Return the state directory of peer `number`; the first peer has number 1."""
        return self.root / f"peer-{number}"

    def _create_peer(self, number: int) -> str:
        """Create a peer's state directory and key; return its peer id.

        All peers share one folder of tokens, so that the text is tokenised only once.
        """
        state = self.state(number)
        state.mkdir()
        (state / "tokens").symlink_to(self._tokens)
        return Identity.load_or_create(StateDirectory(state).identity).peer_id

    def _clear(self) -> None:
        """Empty the folder. Raises: OSError; StorageError if no demo wrote its content."""
        if any(self.root.iterdir()) and not (self.root / _MARKER).exists():
            what = f"{self.root} is not empty, and its content is not a demo's"
            raise StorageError(what, _ELSEWHERE)
        for path in self.root.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _MARKER:
                path.unlink()


def run_text() -> str:
    """Return the text of the demo's run file."""
    packaged = importlib.resources.files("atom.cli.demo").joinpath("demo.toml")
    return packaged.read_text(encoding="utf-8")
