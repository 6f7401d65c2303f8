"""Rows about optimizer steps: offloaded in `buckets`, hidden (`coarsening`)."""

import argparse
import contextlib
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from atom.base.clock import BootClock
from atom.models.gpt3 import GPT3Config
from atom.optim.adamw import AdamW
from atom.optim.stepper import Stepper
from atom.swap.device import CpuDevice
from atom.swap.host_store import MASTER, StateForm
from benchmarks.optimizer import run as optimizers
from benchmarks.papers.after_commit import Round
from benchmarks.papers.memory import FLOAT32_BYTES_PER_PARAMETER
from benchmarks.papers.result import MEGABYTE, Result, result
from benchmarks.ring.member import Job, join_group
from benchmarks.shared.members import PATIENCE_S, found_by
from benchmarks.shared.seats import shaped


def buckets(_: argparse.Namespace) -> list[Result]:
    """Compare the step of AxoNN V-B with Atom's, both with one thread.

    AxoNN keeps the state on the host and steps it on the device, a bucket at a time. Atom steps
    the state on the host, by threads that take a piece at a time.
    """
    sizes, found = [1 << n for n in (14, 16, 18, 20, 22, 24)], list[Result]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    arenas = optimizers.Arenas(24_000_000)
    sides = {size: (_in_place(arenas, size), _bucketed(arenas, size)) for size in sizes}
    seconds: dict[int, list[tuple[float, ...]]] = {size: [] for size in sizes}
    for run in range(6):
        for size, both in sides.items():
            ends = [time.perf_counter()]
            for take in both:
                take(run + 1)
                ends.append(time.perf_counter())
            seconds[size].append(tuple(end - begin for begin, end in pairwise(ends)))
    torch.set_num_threads(threads)
    medians = {
        size: [statistics.median(column) for column in zip(*runs[1:], strict=True)]
        for size, runs in seconds.items()
    }
    fastest = min(ours for ours, _ in medians.values())
    for size, (ours, theirs) in medians.items():
        held = f"{FLOAT32_BYTES_PER_PARAMETER * size / MEGABYTE:.1f} MB of the device"
        case = f"{arenas.elements:,} parameters, {size:,} at a time: ms, x our fastest"
        found.append(result(
            case, f"{1e3 * ours:.1f}, {ours / fastest:.2f}; nothing of the device",
            f"{1e3 * theirs:.1f}, {theirs / fastest:.2f}; {held} (done here)",
        ))  # fmt: skip
    return found


def _in_place(arenas: optimizers.Arenas, piece: int) -> optimizers.Take:
    store = arenas.store(StateForm.EXACT, torch.bfloat16)
    with patch("atom.optim.optimizer.PIECE_ELEMENTS", piece):  # a constant in the product
        stepper = Stepper(store, AdamW(), BootClock())

    def take(step: int) -> None:
        stepper.begin(arenas.gradients[torch.bfloat16], optimizers.RATE, step)
        stepper.wait()

    return take


def _bucketed(arenas: optimizers.Arenas, bucket: int) -> optimizers.Take:
    """Copy state and gradient in, step, copy the state and a rounded copy out."""
    device, gradient = optimizers.Arenas(bucket), torch.empty(bucket)

    def take(step: int) -> None:
        for start in range(0, arenas.elements, bucket):
            there = slice(start, min(start + bucket, arenas.elements))
            here = slice(there.stop - there.start)
            gradient[here].copy_(arenas.gradients[torch.bfloat16][there])
            for name, arena in arenas.wide.items():
                device.wide[name][here].copy_(arena[there])
            optimizers.torch_step(device, here, gradient[here], step)
            for name, arena in arenas.wide.items():
                arena[there].copy_(device.wide[name][here])
            arenas.copy[there].copy_(device.wide[MASTER][here])

    return take


def coarsening(_: argparse.Namespace) -> list[Result]:
    """Measure the part of the step that is not hidden, by the amount that is stepped at once.

    AxoNN V-C steps k buckets as soon as they are reduced. Atom steps under the next pass, once the
    all-reduce is decided: exposed is the share of the first sub-model, of `layers` layers.
    """
    config, found = GPT3Config(12, 8, 384, 64, vocabulary_size=2048), behind_the_reduce()
    for layers in (1, 2, 4, 7, 14):
        with contextlib.closing(CpuDevice()) as device:
            round_ = Round(config, 2, device, layers)
            pairs = [(round_.step_between(), round_.step_under()) for _ in range(6)][1:]
        spec_of = round_.program.layout.by_name
        first = {name for _, name in round_.program.sub_models[0].parameters}
        share = sum(spec_of[name].numel for name in first) / sum(
            spec.numel for spec in round_.program.layout.specs
        )
        between, under = (
            1e3 * statistics.median(pair[side] for pair in pairs) for side in range(2)
        )
        case = (
            f"{layers} of 14 layers at once: ms to the first forward, step before it and under it"
        )
        words = f"{between:.0f}, {under:.0f}; {share:.0%} of the step exposed"
        found.append(result(case, words, STEP_PAPER))
    return found


STEP_PAPER = "k = 2 and 4 are best, 1 is worse than no overlap (AxoNN)"
MBIT, BUCKET, COARSE = 800.0, 1 << 18, (1, 2, 4, 8, 16, 32)
"""Rate of the lines; elements of a bucket; buckets that are reduced and stepped at once."""


def behind_the_reduce() -> list[Result]:
    """Measure AxoNN's way: two members over gloo; a reduced part is stepped under later ones."""
    with tempfile.TemporaryDirectory() as folder, shaped([MBIT] * 2) as seats:
        rendezvous = Path(folder, "gloo").as_uri()
        elements = BUCKET * max(COARSE)
        found = found_by(_reduce_and_step, Job(tuple(seats), (elements,), 5, (), rendezvous), 2)
    results = []
    for index, k in enumerate(COARSE):
        runs = [max(run) for run in zip(*(of_member[index] for of_member in found), strict=True)]
        ended, exposed = (1e3 * statistics.median(run[at] for run in runs) for at in range(2))
        case = (
            f"k = {k} of {max(COARSE)} buckets of {BUCKET:,}: ms to the step's end, of it exposed"
        )
        results.append(
            result(case, "not before the commit", f"{ended:.0f}, {exposed:.1f} (done here)")
        )
    return results


def _reduce_and_step(rank: int, job: Job, gate: Any, parent: Connection) -> None:
    """Main function of a process: send runs by k, in seconds: all, and after the last reduction."""
    job.seats[rank].take()
    torch.set_num_threads(1)
    parent.send(None)
    parent.recv()
    arenas, found = optimizers.Arenas(job.elements[0]), list[list[tuple[float, float]]]()
    gradient = arenas.gradients[torch.float32]
    with contextlib.ExitStack() as stack:
        join_group(rank, job, stack)
        lane = stack.enter_context(ThreadPoolExecutor(1))
        for k in COARSE:
            found.append([])
            for run in range(job.runs):
                gate.wait(PATIENCE_S)
                began, steps = time.perf_counter(), []
                for start in range(0, arenas.elements, k * BUCKET):
                    part = slice(start, start + k * BUCKET)
                    dist.all_reduce(gradient[part])
                    gradient[part].div_(2)
                    take = optimizers.torch_step
                    steps.append(lane.submit(take, arenas, part, gradient[part], run + 1))
                reduced = time.perf_counter()
                for step in steps:
                    step.result()
                ended = time.perf_counter()
                found[-1].append((ended - began, ended - reduced))
        parent.send(found)
        gate.wait(PATIENCE_S)


ROWS = {"buckets": buckets, "coarsening": coarsening}
