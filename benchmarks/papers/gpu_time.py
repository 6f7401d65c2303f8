"""Row `gpu-time`: the metric of Atom's figures 14 and 15, seconds of a GPU per micro-batch.

Only forward and backward count: no all-reduce, no optimizer. Four GPUs, float32, gradients of four
micro-batches of one sequence of 2,048 tokens. A pipeline's four stages hold all GPUs for a step of
four micro-batches, so a micro-batch takes a step's seconds of a GPU. A swapping peer works alone:
a micro-batch takes a quarter of a pass, and no line is used.

Asleep are the cards (14 TFLOP/s, a V100 in float32) and Atom's link (PCIe 3.0 x16, 12 GB/s); real
are the schedules, the boundaries over shaped lines, and Atom's engine, a process per peer. Atom's
embedding and head sleep by all their parameters; a pipeline counts only the model's nominal size.
"""

import argparse
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from atom.models.gpt3 import GPT3Config
from benchmarks.devices.sleeping import SleepingDevice, batches_of, closed, made
from benchmarks.devices.torch_sides import Work
from benchmarks.home.small_round import PARAMETERS
from benchmarks.papers.figures import SEQUENCE_TOKENS, Pipeline, Scale, Trial
from benchmarks.papers.lines import need_root
from benchmarks.papers.pipeline import SCHEDULES, measured
from benchmarks.papers.result import Result, result
from benchmarks.shared.members import PATIENCE_S, found_by

CARD_FLOPS, LINK_BYTES_PER_S = 14e12, 12e9
GPUS, ACCUMULATED, FLOAT32_BYTES, STEPS = 4, 4, 4, 2
BOUNDARY_BYTES = 1 << 20
"""Bytes of one sequence at a boundary, in small."""
LINES_MBIT = {"400 Mbit/s": 400.0, "800 Mbit/s": 800.0, "unthrottled": 10_000.0}
PAPER = "up to 20 x GPipe on slow lines; busy 91.9 %, PipeDream 46.3 %, GPipe 18.3 %"


@dataclass(frozen=True)
class Model:
    """A size of GPT-3, and the real seconds per second here."""

    size: str
    layers: int
    model_dim: int
    seconds: float

    @property
    def block_elements(self) -> int:
        return 12 * self.model_dim**2

    @property
    def small(self) -> GPT3Config:
        """Model with as many layers, and a table with the same share of the parameters."""
        width = 64
        table = 50_257 * self.model_dim / self.block_elements * 12 * width
        return GPT3Config(self.layers, 2, width, sequence_tokens=8, vocabulary_size=round(table))

    def pipeline(self, mbit: float) -> Pipeline:
        return Pipeline(
            PARAMETERS[self.size], self.model_dim, GPUS, CARD_FLOPS, mbit * 1e6 / 8,
            FLOAT32_BYTES, ACCUMULATED * SEQUENCE_TOKENS,
        )  # fmt: skip


MODELS = (
    Model("125M", 12, 768, 0.25), Model("1.3B", 24, 2048, 1.0), Model("6.7B", 32, 4096, 4.0)
)  # fmt: skip


def gpu_time(options: argparse.Namespace) -> Iterator[Result]:
    """Yield seconds of a GPU per micro-batch, of each side on each line."""
    need_root()
    asked = {model for model, _, _ in options.cases}
    for model in (model for model in MODELS if model.size in asked):
        peers = found_by(_swapping_peer, model, GPUS)
        ours_s = max(seconds for seconds, _ in peers)
        busy = sum(computing_s for _, computing_s in peers) / sum(seconds for seconds, _ in peers)
        yield _result(model, "Atom, any line", ours_s * model.seconds / ACCUMULATED, busy)
        for line, mbit in LINES_MBIT.items():
            real = model.pipeline(mbit)
            small = real.boundary_bytes(SEQUENCE_TOKENS) / BOUNDARY_BYTES
            scale = Scale(model.seconds, small)
            trials = [Trial.of(real, scale, name, ACCUMULATED, STEPS) for name in SCHEDULES]
            for each in measured(real, scale, trials):
                gpu_s = GPUS * SEQUENCE_TOKENS / each.tokens_per_s
                times = gpu_s * ACCUMULATED / ours_s / model.seconds
                yield _result(model, f"{each.schedule}, {line}", gpu_s, each.busy, times)


def _result(model: Model, side: str, gpu_s: float, busy: float, times: float = 1.0) -> Result:
    case = f"GPT-3 {model.size}, {side}: s of a GPU per micro-batch, of Atom's, busy"
    words = f"{gpu_s:.2f}, {times:.1f} x, {busy:.1%}"
    figures = {"gpu_s": gpu_s, "times": times, "busy": busy}
    return result(case, words, PAPER, **figures, load=os.getloadavg()[0])


def _swapping_peer(rank: int, model: Model, gate: Any, parent: Connection) -> None:
    """Main function of a peer: send mean seconds of a pass, and of its computing."""
    torch.set_num_threads(1)
    parent.send(None)
    parent.recv()
    small = model.small
    block_s = 2 * model.block_elements * SEQUENCE_TOKENS / CARD_FLOPS / model.seconds
    work = Work(small, False, block_s, ACCUMULATED, STEPS)
    shrunk = 12 * small.model_dim**2 / model.block_elements
    device = SleepingDevice(work.element_s, LINK_BYTES_PER_S * shrunk * model.seconds)
    with contextlib.ExitStack() as stack:
        stack.enter_context(closed([device]))
        _, replica = made(work, [device], 1, ACCUMULATED)
        batches = batches_of(work)
        replica.run_pass(batches)
        gate.wait(PATIENCE_S)
        began, before_s = time.perf_counter(), device.computed_s
        for _ in range(STEPS):
            replica.run_pass(batches)
        parent.send(_means(time.perf_counter() - began, device.computed_s - before_s))
        gate.wait(PATIENCE_S)


def _means(*seconds: float) -> Sequence[float]:
    return [each / STEPS for each in seconds]


ROWS = {"gpu-time": gpu_time}
