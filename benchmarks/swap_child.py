"""The process of one side: builds it, then runs steps as it is told. JSON lines in, JSON lines out.

    python benchmarks/swap_child.py '{"side": "atom", ...}'      # a swap_setup.Setup

Started by `swap_company.py`, nobody types this. What libraries print goes to stderr.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout, nothing installed

import torch
from swap_setup import Setup, SideMissing
from swap_sides import Side, Witness, open_side

from atom.base.errors import UserError


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    setup = Setup.from_json(sys.argv[1])
    started = time.perf_counter()
    try:
        side = open_side(setup)
        _synchronize(setup)
    except SideMissing as missing:
        _answer(answers, missing=str(missing))
        return
    except Exception as problem:
        _answer(answers, failed=told(problem))
        raise
    _answer(answers, ready_s=time.perf_counter() - started)
    try:
        _serve(side, setup, answers)
    finally:
        side.close()


def _serve(side: Witness, setup: Setup, answers: TextIO) -> None:
    runner = Runner(side, setup)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = runner.run(asked["micro_batches"], asked["steps"], asked["trace"])
        except Exception as problem:
            _answer(answers, failed=told(problem))
            raise
        _answer(answers, **answer)


@dataclass
class Runner:
    side: Witness
    setup: Setup
    steps_done: int = 0

    def run(self, micro_batches: int, steps: int, trace: str | None) -> dict[str, Any]:
        """`steps` steps in a row, timed from the end of one to the end of the next.

        One more comes first and is not timed: a step may leave work behind that the next one
        overlaps with, so the first one has it easier. No steps at all asks for the facts alone.
        """
        data = [
            self.setup.batches(micro_batches, self.steps_done + n)
            for n in range(steps + 1 if steps else 0)
        ]
        self.steps_done += len(data)
        _synchronize(self.setup)
        losses, ends = [], []
        for batches in data:
            assert isinstance(self.side, Side), "a case asks for steps only where there are some"
            losses.append(self.side.step(batches))
            ends.append(time.perf_counter())
        _synchronize(self.setup)
        return {
            "seconds": [after - before for before, after in pairwise(ends)],
            "losses": losses,
            "memory": memory(self.setup),
            "facts": self.side.facts(trace),
        }


def memory(setup: Setup) -> dict[str, int]:
    """Peak of the allocator on the GPU, and what this process and its children hold of the host.

    Proportional set size: memory that several of them share counts once.
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
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def told(problem: Exception) -> str:
    """In one line."""
    words = problem.message if isinstance(problem, UserError) else str(problem)
    return f"{type(problem).__name__}: {words.strip().partition(chr(10))[0]}"[:300]


def _synchronize(setup: Setup) -> None:
    if setup.device == "cuda":
        torch.cuda.synchronize()


def _answer(answers: TextIO, **fields: Any) -> None:
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


if __name__ == "__main__" and len(sys.argv) > 1:  # `make bench` runs every file here, this one too
    main()
