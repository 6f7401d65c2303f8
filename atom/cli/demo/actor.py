"""One peer of the demo: a daemon in its own process, which never outlives the demo."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import deque
from pathlib import Path

import psutil

import atom
from atom.base.errors import AtomError
from atom.swarm.dht.p2pd import die_with_parent

ADDRESS_S = 120.0
"""For importing PyTorch from a slow disk, tracing and tokenising."""
GONE_S = 5.0
TAIL_LINES = 15
_JOIN = "join: "
_PR_SET_CHILD_SUBREAPER = 36


class ActorFailed(AtomError):
    """A daemon ended that should not have; the hint shows what it said last."""


class Actor:
    """A daemon process: `start`, then wait, `kill` (one process) or `remove` (all it started)."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[None] | None = None

    @property
    def process_id(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return None if self._process is None else self._process.returncode

    async def start(self, *arguments: str) -> None:
        """Runs `atom ARGUMENTS…`; stderr goes to the log."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "atom", *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # Ctrl-C at the terminal is ours to answer
                preexec_fn=die_with_parent,
            )

    async def join_address(self) -> str:
        """What the founder prints first. Raises: ActorFailed if it ends, or says nothing."""
        try:
            async with asyncio.timeout(ADDRESS_S):
                line = await self._stdout.readline()
        except TimeoutError:
            raise self.failure(f"printed no address within {ADDRESS_S:.0f} s") from None
        text = line.decode(errors="replace").strip()
        if not text.startswith(_JOIN):
            await self._process_ended()
            raise self.failure(f"ended with exit code {self.exit_code} before it was reachable")
        self.drain()
        return text.removeprefix(_JOIN)

    def drain(self) -> None:
        """Keeps the pipe empty from now on."""
        self._drain = asyncio.create_task(self._discard_output())

    def kill(self) -> None:
        """SIGKILL to the daemon alone: whatever it started has to notice by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process_id, signal.SIGKILL)

    async def remove(self) -> None:
        """SIGKILL to the daemon and its group, then waits; for the end, however it came."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process_id, signal.SIGKILL)
        await self._process.wait()
        if self._drain is not None:
            self._drain.cancel()

    def failure(self, what: str) -> ActorFailed:
        """The exception that tells `what` happened, with the end of the log."""
        lines = _tail(self.log)
        return ActorFailed(f"{self.name} {what}", "\n".join((f"the end of {self.log}:", *lines)))

    @property
    def _stdout(self) -> asyncio.StreamReader:
        assert self._process is not None, "not started"
        assert self._process.stdout is not None, "a pipe was asked for"
        return self._process.stdout

    async def _discard_output(self) -> None:
        while await self._stdout.read(1 << 16):
            pass

    async def _process_ended(self) -> None:
        assert self._process is not None, "not started"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GONE_S):
                await self._process.wait()


def adopt_orphans() -> None:
    """Processes whose parent dies become our children: so that `end_descendants` sees them all."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """SIGKILL to everything below us, until nothing is left or `GONE_S` have passed."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        children = psutil.Process().children(recursive=True)
        if not children:
            return
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=0.5)


def _tail(path: Path) -> list[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return [line.rstrip() for line in deque(file, maxlen=TAIL_LINES)]


def _environment() -> dict[str, str]:
    """Atom importable as it is here, plain logs, no GPU, one arithmetic thread."""
    paths = [str(Path(atom.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "NO_COLOR": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
