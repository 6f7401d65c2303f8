"""The processes of the sides, as the program sees them: asked in turn, ended in time."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swap_setup import Setup

CHILD = Path(__file__).with_name("swap_child.py")
END_S = 20.0
"""How long a side may take to put things away before it is killed."""


class SideFailed(Exception):
    """A side did not start, or did not live; with the reason for the table."""


class OutOfTime(SideFailed):
    """The program's deadline has come."""


@dataclass(frozen=True)
class Deadline:
    """When the program has to be done, in `time.monotonic` seconds. None: whenever."""

    at_s: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        return cls(None if seconds is None else time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        return float("inf") if self.at_s is None else self.at_s - time.monotonic()


@dataclass
class Answer:
    """What one run of a side came to."""

    seconds: list[float]
    losses: list[float]
    memory: dict[str, int]
    facts: dict[str, Any]


class Child:
    """One side in a process of its own. Raises: SideFailed when it cannot be had."""

    def __init__(self, setup: Setup, deadline: Deadline) -> None:
        self.setup = setup
        self._deadline = deadline
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the child lives
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), setup.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
            env=_environment(setup),
        )
        self._unread = b""
        try:
            self.ready_s: float = self._hear()["ready_s"]
        except BaseException:
            self.end()
            raise

    def run(self, micro_batches: int, steps: int, trace: str | None = None) -> Answer:
        """Raises: SideFailed, after which the child is of no more use."""
        asked = {"micro_batches": micro_batches, "steps": steps, "trace": trace}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as problem:
            raise SideFailed(self._last_words()) from problem
        return Answer(**self._hear())

    def end(self) -> None:
        """Idempotent. A child that does not end by itself is killed, with all it has started."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._wait()
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()

    def _hear(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._line())
        for reason in ("missing", "failed"):
            if reason in answer:
                raise SideFailed(answer[reason])
        return answer

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left_s = self._deadline.left_s
                if left_s <= 0 or not selector.select(None if left_s == float("inf") else left_s):
                    raise OutOfTime("out of time")
                more = os.read(self._process.stdout.fileno(), 2**16)
                if not more:
                    raise SideFailed(self._last_words())
                self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._wait()
        code = self._process.poll()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        how = f"exit code {code}, below zero: a signal's number" if code else "it ended"
        return f"{how}: {lines[-1][:300]}" if lines else how

    def _wait(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, min(END_S, self._deadline.left_s)))


@dataclass
class Company:
    """Children by their setup. Those not needed any more are ended before a new one starts."""

    deadline: Deadline
    children: dict[Setup, Child] = field(default_factory=dict)

    def only(self, *setups: Setup) -> list[Child]:
        """Children for these setups, and no others. Raises: SideFailed."""
        for setup in [s for s in self.children if s not in setups]:
            self.children.pop(setup).end()
        for setup in setups:
            if setup not in self.children:
                self.children[setup] = Child(setup, self.deadline)
        return [self.children[setup] for setup in setups]

    def forget(self, setup: Setup) -> None:
        """Ends a child that has failed, if it was there."""
        if setup in self.children:
            self.children.pop(setup).end()

    def close(self) -> None:
        self.only()


def _environment(setup: Setup) -> dict[str, str]:
    """CUBLAS_WORKSPACE_CONFIG: what deterministic matrix products ask for before CUDA starts."""
    cores = str(len(os.sched_getaffinity(0)))
    extra = {"PYTHONUNBUFFERED": "1"}
    if setup.side == "exactness":
        extra["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if setup.side.startswith("deepspeed") or setup.side == "fsdp":
        extra["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", cores)
    return {**os.environ, **extra}
