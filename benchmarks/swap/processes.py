"""Processes of the sides: one per setup, asked in turn, ended in time."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from atom.base.errors import UserError
from benchmarks.swap.setup import MicroBatches, Setup, SideMissing
from benchmarks.swap.sides import Side, Witness, open_side

END_S = 20.0
"""Time for a side to clean up before it is killed."""


class SideFailed(Exception):
    """Failure of a side, with the reason for the table."""


class OutOfTime(SideFailed):
    """End of the program's time."""


@dataclass(frozen=True)
class Deadline:
    """End of the program's time, in `time.monotonic` seconds. None: no limit."""

    at_s: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        return cls(None if seconds is None else time.monotonic() + seconds)

    @property
    def left_s(self) -> float | None:
        return None if self.at_s is None else max(self.at_s - time.monotonic(), 0.0)


@dataclass(frozen=True)
class Answer:
    """Result of one run of a side."""

    seconds: list[float]
    losses: list[float]
    memory: dict[str, int]
    facts: dict[str, Any]


class Child:
    """One side in a separate process.

    Raises:
        SideFailed: the side did not start.
    """

    def __init__(self, setup: Setup, deadline: Deadline) -> None:
        self._deadline = deadline
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_live, args=(setup, theirs), daemon=True)
        with _environment(setup):
            self._process.start()
        theirs.close()
        try:
            self.ready_s: float = self._receive()
        except BaseException:
            self.end()
            raise

    def run(self, micro_batches: int, steps: int) -> Answer:
        """Run steps.

        Raises:
            SideFailed: the child has failed for all later runs, too.
        """
        with suppress(OSError):
            self._pipe.send((micro_batches, steps))
        answer: Answer = self._receive()
        return answer

    def end(self) -> None:
        """End the child, and kill all processes that it has left. Idempotent."""
        self._pipe.close()
        left_s = self._deadline.left_s
        self._process.join(END_S if left_s is None else min(END_S, left_s))
        self._process.kill()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.join()

    def _receive(self) -> Any:
        if not self._pipe.poll(self._deadline.left_s):
            raise OutOfTime("out of time")
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(END_S)
            raise SideFailed(f"ended with exit code {self._process.exitcode}") from None
        if isinstance(answer, SideFailed):
            raise answer
        return answer


@dataclass
class Company:
    """Children by their setup."""

    deadline: Deadline
    children: dict[Setup, Child] = field(default_factory=dict)

    def child(self, setup: Setup) -> Child:
        """Return the child of a setup, started if need be.

        Raises:
            SideFailed: the child did not start.
        """
        if setup not in self.children:
            self.children[setup] = Child(setup, self.deadline)
        return self.children[setup]

    def keep(self, *setups: Setup) -> None:
        """End all children but those of these setups."""
        for setup in [s for s in self.children if s not in setups]:
            self.children.pop(setup).end()


@contextmanager
def _environment(setup: Setup) -> Iterator[None]:
    """Set variables that a child needs before it imports torch."""
    own = dict[str, str]()
    if setup.side == "exactness":  # for deterministic matrix products
        own["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if setup.side == "fsdp":
        own["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    with patch.dict(os.environ, own | os.environ):
        yield


def _live(setup: Setup, pipe: Connection) -> None:
    """Main function of a child: build the side, then run steps until the pipe closes."""
    os.setsid()
    os.dup2(2, 1)  # stdout is for the JSON
    side: Witness | None = None
    started = time.perf_counter()
    try:
        side = open_side(setup)
        _synchronize(setup)
        pipe.send(time.perf_counter() - started)
        steps_done = 0
        while True:
            micro_batches, steps = pipe.recv()
            numbers = range(steps_done, steps_done + steps + 1) if steps else range(0)
            data = [setup.batches(micro_batches, number) for number in numbers]
            steps_done += len(data)
            pipe.send(_run(side, setup, data))
    except (EOFError, BrokenPipeError):
        pass
    except SideMissing as missing:
        pipe.send(SideFailed(str(missing)))
    except Exception as problem:  # noqa: BLE001 - every failure of a side is a row of the table
        words = problem.message if isinstance(problem, UserError) else str(problem)
        line = f"{type(problem).__name__}: {words.strip().partition(chr(10))[0]}"
        pipe.send(SideFailed(line[:300]))
    finally:
        if side is not None:
            side.close()


def _run(side: Witness, setup: Setup, data: Sequence[MicroBatches]) -> Answer:
    """Run steps in a row, timed from the end of one to the end of the next.

    The first step is not timed: a step may leave work behind that overlaps the next one, so the
    first one is easier. Without steps only the facts are returned.
    """
    _synchronize(setup)
    losses, ends = [], []
    for batches in data:
        assert isinstance(side, Side), "a case asks for steps only where there are some"
        losses.append(side.step(batches))
        ends.append(time.perf_counter())
    _synchronize(setup)
    seconds = [after - before for before, after in pairwise(ends)]
    return Answer(seconds, losses, _memory(setup), side.facts())


def _memory(setup: Setup) -> dict[str, int]:
    """Return the peak of the GPU's allocator, and the host memory of this process and its children.

    Host memory is the proportional set size: memory that several processes share counts once.
    """
    held = {"host_bytes": sum(_host_bytes(pid) for pid in _family(os.getpid()))}
    if setup.device == "cuda":
        held["gpu_allocated_bytes"] = torch.cuda.max_memory_allocated()
        held["gpu_reserved_bytes"] = torch.cuda.max_memory_reserved()
    return held


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(word) for each in children for word in each.read_text().split()]
    return [pid, *(member for child in found for member in _family(child))]


def _host_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # the process has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _synchronize(setup: Setup) -> None:
    if setup.device == "cuda":
        torch.cuda.synchronize()
