"""A hostile program that gets a fixed share of one core, however much it asks for.

The share is kept from outside, as `cpulimit` does: a thread adds up the processor time of the
program and all its children, and stops them (SIGSTOP) while they are ahead of their share. Thus an
attacker and the idle burner of the baseline take the same from the machine.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from atom.swarm.dht.p2pd import die_with_parent

ROOT = Path(__file__).parents[2]
HALF_A_CORE = 0.5
LOOK_S = 0.02
FAMILY_S = 0.5
"""Interval between two searches for new children, each of which reads all of /proc."""
SAVED_S = 0.1
"""Processor time that a program may save up while it sleeps."""
READY, IDLE = "ready", "idle-burner"
"""Line of a program that has begun; name of the program that only takes its share."""
READY_S = 180.0


@dataclass
class Allowance:
    """Processor time that a program may still take: a bucket in seconds. Pure."""

    share: float
    saved_s: float = SAVED_S
    used_s: float = 0.0

    def may_run(self, used_s: float, passed_s: float) -> bool:
        """Return True if the program is not ahead of its share.

        Args:
            used_s: Processor time that it has taken since its start.
            passed_s: Time since the last call.
        """
        self.saved_s = min(self.saved_s + self.share * passed_s, SAVED_S) - (used_s - self.used_s)
        self.used_s = used_s
        return self.saved_s > 0.0


@dataclass
class Family:
    """A process with all its children, and the processor time that they have taken."""

    first: psutil.Process
    members: list[psutil.Process] = field(default_factory=list)
    used_s: dict[int, float] = field(default_factory=dict)
    """Processor time by process id, ended processes included."""
    is_stopped: bool | None = None
    """State of all members; None if new members may be in another state."""

    def search(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.members = [self.first, *self.first.children(recursive=True)]
        self.is_stopped = None

    def measure(self) -> float:
        """Return the processor time of all members so far, in seconds."""
        for process in self.members:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self.used_s[process.pid] = times.user + times.system
        return sum(self.used_s.values())

    def set_running(self, runs: bool) -> None:
        if self.is_stopped is (not runs):
            return
        for process in self.members:
            with contextlib.suppress(psutil.NoSuchProcess):
                (process.resume if runs else process.suspend)()
        self.is_stopped = not runs

    def end(self) -> None:
        self.search()
        for process in self.members:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def keep_share(family: Family, share: float, ended: threading.Event) -> None:
    """Hold a family to its share of one core until `ended` is set."""
    allowance, before, searched = Allowance(share), time.monotonic(), float("-inf")
    while not ended.wait(LOOK_S):
        now = time.monotonic()
        if now - searched >= FAMILY_S:
            family.search()
            searched = now
        family.set_running(allowance.may_run(family.measure(), now - before))
        before = now


@dataclass(frozen=True)
class Hostile:
    """A hostile program at work."""

    family: Family
    log: Path
    """JSON lines with its own counts, the newest last."""

    def counts(self) -> dict[str, Any]:
        """Return its newest counts; empty if it has written none."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        whole = [line for line in lines if line.startswith("{") and line.endswith("}")]
        found: dict[str, Any] = json.loads(whole[-1]) if whole else {}
        return found


@contextlib.contextmanager
def hostile(
    program: str, target: Mapping[str, Any], folder: Path, share: float = HALF_A_CORE
) -> Iterator[Hostile]:
    """Run `benchmarks.attacks.PROGRAM` with a share of one core while the context is open.

    The share counts from when the program is ready: twenty DHT nodes take a minute to start.

    Args:
        program: Module of this folder and its first arguments, separated by blanks.
        target: Its last argument, as JSON.
        folder: Receives its log.
        share: Share of one core.

    Raises:
        RuntimeError: it did not get ready.
    """
    name, *arguments = program.split(" ", 1)
    log = folder / f"{program.replace(' ', '-')}-{time.time_ns()}.log"
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.attacks.{name}", *arguments, json.dumps(target)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
            preexec_fn=die_with_parent,
        )
    family, ended = Family(psutil.Process(process.pid)), threading.Event()
    keeper = threading.Thread(target=keep_share, args=(family, share, ended))
    try:
        _until_ready(process, log)
        keeper.start()
        yield Hostile(family, log)
    finally:
        ended.set()
        if keeper.ident is not None:
            keeper.join()
        family.end()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    gives_up_at = time.monotonic() + READY_S
    while READY not in log.read_text(encoding="utf-8", errors="replace"):
        if process.poll() is not None or time.monotonic() > gives_up_at:
            raise RuntimeError(f"the attack did not start: {log.read_text(encoding='utf-8')}")
        time.sleep(LOOK_S)  # the program writes to a file, which cannot be waited for
