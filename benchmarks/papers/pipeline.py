"""A model cut over machines, a stage each: torch's GPipe and 1F1B (PipeDream-flush).

Real: `torch.distributed.pipelining` over gloo, a process per stage, all bytes of the boundaries.
Asleep: the passes of the stages.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks.papers.figures import NUMBER_BYTES, Found, Pipeline, Scale, Step, Trial, found
from benchmarks.shared.members import spawned
from benchmarks.shared.seats import Seat, shaped

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}
QUEUE_MS, PATIENCE_S = 50.0, 300.0
"""Time that a full queue of a real line takes; bound on all trials of a pipeline."""
BOUNDARY = torch.bfloat16
assert BOUNDARY.itemsize == NUMBER_BYTES


class _Pass(torch.autograd.Function):
    """Pass of a stage: sleep, and return tensors of the right size."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, stage: "_Stage") -> Tensor:
        ctx.stage = stage
        stage.sleep(stage.forward_s)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.stage.sleep(2 * ctx.stage.forward_s)
        return gradient.clone(), torch.zeros(()), None


class _Stage(nn.Module):
    def __init__(self, forward_s: float) -> None:
        super().__init__()
        self.forward_s = forward_s
        self.slept_s = 0.0
        self.weight = nn.Parameter(torch.zeros(()))  # inputs of the first stage need no gradient

    def sleep(self, seconds: float) -> None:
        began = time.perf_counter()
        time.sleep(seconds)  # stands for computing
        self.slept_s += time.perf_counter() - began

    def forward(self, inputs: Tensor) -> Tensor:
        return _Pass.apply(inputs, self.weight, self)


def _live(
    rank: int,
    seats: Sequence[Seat],
    rendezvous: str,
    trials: Sequence[Trial],
    starts_at: float,
    steps: Connection,
) -> None:
    """Main function of a stage's process: send each `Step` as it ends."""
    time.sleep(max(0.0, starts_at - time.time()))  # the node is away until then
    seats[rank].take()
    os.environ["GLOO_SOCKET_IFNAME"] = seats[rank].interface
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=len(seats))
    for number, trial in enumerate(trials):
        stage = _Stage(trial.forward_s)
        step = _scheduled(stage, trial, rank, len(seats))
        dist.barrier()
        for _ in range(trial.steps):
            slept_s, began = stage.slept_s, time.time()
            step()
            steps.send(Step(number, began, time.time(), stage.slept_s - slept_s))
    dist.barrier()
    dist.destroy_process_group()


def _scheduled(stage: _Stage, trial: Trial, rank: int, nodes: int) -> Callable[[], object]:
    """Return the function that takes a step."""
    batch = torch.zeros(trial.micro_batches, trial.elements, dtype=BOUNDARY)
    ends = [batch[:1].clone().requires_grad_(needed) for needed in (rank > 0, True)]
    device = torch.device("cpu")
    placed = PipelineStage(stage, rank, nodes, device, input_args=ends[0], output_args=ends[1])
    schedule = SCHEDULES[trial.schedule](
        placed, trial.micro_batches, loss_fn=lambda outputs, _: outputs.sum()
    )
    inputs = (batch,) if rank == 0 else ()
    target = {"target": batch} if rank == nodes - 1 else {}
    return lambda: schedule.step(*inputs, return_outputs=False, **target)


class Stages:
    """Processes of one pipeline, and their steps by stage."""

    def __init__(self, processes: Sequence[BaseProcess], pipes: Sequence[Connection]) -> None:
        self.processes = processes
        self.steps = [list[Step]() for _ in processes]
        self._open = dict(zip(pipes, self.steps, strict=True))

    @property
    def has_ended(self) -> bool:
        return not self._open

    def hear(self, moment: float, until: Callable[[], object] = lambda: False) -> None:
        """Receive steps until `until` holds, the moment comes, or no stage lives."""
        while self._open and not until() and time.time() < moment:
            for pipe in wait(list(self._open), 0.2):
                assert isinstance(pipe, Connection)
                try:
                    self._open[pipe].append(pipe.recv())
                except (EOFError, OSError):
                    del self._open[pipe]


@contextmanager
def running(
    seats: Sequence[Seat], folder: Path, trials: Sequence[Trial], starts_at: float = 0.0
) -> Iterator[Stages]:
    """Yield a pipeline that works through its trials.

    Args:
        seats: of the stages.
        folder: its own, and empty.
        trials: in order.
        starts_at: Unix seconds; the processes exist before.
    """
    rendezvous = (folder / "rendezvous").as_uri()
    of_each = [(rank, seats, rendezvous, trials, starts_at) for rank in range(len(seats))]
    with spawned(_live, of_each) as (processes, pipes):
        yield Stages(processes, pipes)


def measured(real: Pipeline, scale: Scale, trials: Sequence[Trial]) -> list[Found]:
    """Run trials of a pipeline on shaped lines."""
    with on_lines(real, scale) as (seats, folder), running(seats, folder, trials) as stages:
        stages.hear(time.time() + PATIENCE_S)
        assert stages.has_ended
        return found(trials, scale, stages.steps)


@contextmanager
def on_lines(real: Pipeline, scale: Scale) -> Iterator[tuple[Sequence[Seat], Path]]:
    """Yield seats for the stages, and a folder. Needs root."""
    mbit = scale.line(real.line_bytes_per_s) * 8 / 1e6
    with (
        tempfile.TemporaryDirectory(prefix="atom-papers-") as folder,
        shaped([mbit] * real.nodes, QUEUE_MS / scale.seconds) as seats,
    ):
        yield seats, Path(folder)
