"""Atom's side: the model through sub-models, by the replica that a peer's daemon runs."""

import functools
import os
from contextlib import suppress
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from atom.base.clock import BootClock
from atom.base.errors import DeviceError
from atom.graph.costs.measured import measure_layers, measure_link
from atom.graph.costs.seconds import measured_graph
from atom.graph.ir import ParameterLayout, Program
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT3, initial_value
from atom.optim.adamw import AdamW
from atom.optim.optimizer import optimizer_state
from atom.optim.rate import RateSettings
from atom.plan.choice import Choice
from atom.plan.memory import PLANNED_SHARE
from atom.swap.device import CpuDevice, Device
from atom.swap.device_kernels import device_kernels
from atom.swap.host_store import StateForm, beside_bytes, state_arenas
from atom.swap.schedule import Arrangement
from atom.swap.timeline import Recording, Timeline
from atom.training.replica.replica import Replica, ReplicaSettings
from benchmarks.shared.planner import Planner
from benchmarks.swap.setup import (
    BETAS,
    CLIP_NORM,
    EPSILON,
    LEARNING_RATE,
    PRECISIONS,
    SEED,
    WEIGHT_DECAY,
    MicroBatches,
    Setup,
    SideMissing,
)

MOST_THREADS = 8
"""Threads that make first values, as in a daemon."""


class Atom:
    """One replica on one device, as planned for the setup's cap.

    Raises:
        SideMissing: the host's memory is too small, or the sequences are no power of two.
        UserError: no plan fits.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.clock = setup, BootClock()
        self.gradients = PRECISIONS[setup.gradients]
        self._require_sequences(setup.micro_batches * setup.sequences)
        self.device = open_device(setup)
        graph = trace(GPT3(setup.config, device="meta", dtype=setup.dtype), setup.batches(1, 0)[0])
        self.choice = _choice(graph, setup)
        if self.choice is None:
            self.program = build_program(graph)
        else:
            self.program = self.choice.program(graph)
        arrangement = _staying(self.program, setup.trained)
        arrangement = arrangement if self.choice is None else self.choice.arrangement
        self.at_once = setup.micro_batches if self.choice is None else self.choice.micro_batches
        self._require_host_memory()
        self.recording = Recording()
        self.replica = self._replica(arrangement)
        self.pass_counts: list[int] = []
        self.step_ends: list[float] = []
        self.asked = setup.micro_batches
        if setup.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def _require_sequences(self, sequences: int) -> None:
        """Raise SideMissing if sums in 16 bits cannot be divided exactly.

        Sums are divided in place: exact for powers of two, else with one rounding more than in a
        daemon.
        """
        if self.gradients != torch.float32 and sequences & (sequences - 1):
            raise SideMissing(
                f"{sequences} sequences per step: with gradients in {self.setup.gradients} "
                "it takes a power of two"
            )

    def _require_host_memory(self) -> None:
        """Raise SideMissing before allocating, if the host has too little memory."""
        needs, most = host_bytes(self.setup, self.program.layout), self.setup.host_bytes
        has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if most is None else most
        if needs > has:
            raise SideMissing(
                f"needs {needs / 1e9:.3g} GB of host memory, the host has {has / 1e9:.3g} GB"
            )

    def _replica(self, arrangement: Arrangement) -> Replica:
        rate = RateSettings(LEARNING_RATE, LEARNING_RATE, 0, "constant", None)
        adamw = AdamW(BETAS, EPSILON, WEIGHT_DECAY)
        settings = ReplicaSettings(
            rate=rate,
            optimizer=adamw,
            clip_norm=CLIP_NORM,
            precision=self.setup.dtype,
            arrangement=arrangement,
            micro_batches=self.at_once,
            state_form=StateForm(self.setup.layout),
            gradients=self.gradients,
        )
        replica = Replica(self.program, None, settings, self.device, observer=self.recording)
        values = functools.partial(initial_value, self.setup.config, seed=SEED)
        replica.initialise(values, threads=min(len(os.sched_getaffinity(0)), MOST_THREADS))
        return replica

    def step(self, batches: MicroBatches) -> float:
        """Take a step; AdamW stays under way beneath the next step's passes."""
        replica, self.asked = self.replica, len(batches)
        replica.reset_gradients()
        starts = range(0, len(batches), self.at_once)
        for first in starts:
            some = batches[first : first + self.at_once]
            replica.run_pass(some, last=first == starts[-1])
        loss = replica.loss_sum / replica.sequences
        self._require_sequences(replica.sequences)
        replica.begin_own_step()
        self.pass_counts.append(len(starts))
        self.step_ends.append(self.clock.now())
        return loss

    def facts(self) -> dict[str, Any]:
        """Return figures of the steps since the last call, without the untimed first one."""
        self.replica.finish_step()
        timeline = self._timed_steps()
        counts, ends = self.pass_counts, self.step_ends
        self.pass_counts, self.step_ends = [], []
        if len(ends) < 2:
            return {}
        seconds, steps = ends[-1] - ends[0], len(ends) - 1
        computing_s = timeline.busy_s("compute") / steps
        if self.setup.device == "cuda":
            computing_s = self._kernel_s()
        parameters = sum(spec.numel for spec in self.program.layout.specs)
        optimizer_s = timeline.busy_s("optimizer") / steps
        return {
            "sub_models": len(self.program.sub_models),
            "planned": None if self.choice is None else self._planned(self.choice, counts[-1]),
            "passes_per_step": counts[-1],
            "busy": computing_s * steps / seconds,
            "adamw_per_s": parameters / optimizer_s if optimizer_s else None,
        }

    def _kernel_s(self) -> float:
        """Return seconds of kernels in one more step, by PyTorch's profiler.

        A stream's events would count the gaps between kernels too.
        """
        batches = self.setup.batches(self.asked, len(self.step_ends))
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            self.step(batches)
            self.replica.finish_step()
            torch.cuda.synchronize()
        self.recording.spans, self.pass_counts, self.step_ends = [], [], []
        kernels = [e for e in seen.key_averages() if not e.key.startswith(("Memcpy", "Memset"))]
        return float(sum(e.self_device_time_total for e in kernels)) / 1e6

    def _timed_steps(self) -> Timeline:
        """Return the engine's events between the end of the first step and the end of the last."""
        spans, self.recording.spans = self.recording.spans, []
        if len(self.step_ends) < 2:
            return Timeline(())
        first, last = self.step_ends[0], self.step_ends[-1]
        return Timeline.of(s for s in spans if first <= s.start_s and s.end_s <= last)

    def _planned(self, choice: Choice, passes: int) -> dict[str, Any]:
        """Return the plan's estimate of passes that begin with nothing loaded, as after a step."""
        return {
            "micro_batches_per_pass": choice.micro_batches,
            "device_bytes": choice.memory.total_bytes,
            "foretold_s": choice.timeline.seconds * passes,
        }

    def close(self) -> None:
        self.replica.finish_step()
        self.device.close()


def open_device(setup: Setup) -> Device:
    """Open the device of a setup.

    Raises:
        DeviceError: the device cannot be used.
    """
    if setup.device == "cpu":
        return CpuDevice()
    from atom.swap.streams import CudaDevice

    return CudaDevice(0, setup.dtype, setup.gpu_bytes)


def _staying(program: Program, trained: float | None) -> Arrangement:
    """Return an arrangement where all sub-models stay and a share is trained on the device.

    These are the first sub-models, which the next pass needs first, with the last one, which shares
    a parameter with the first.
    """
    if trained is None:
        return Arrangement()
    count = len(program.sub_models)
    ordered = list(dict.fromkeys((0, count - 1, *range(count))))
    on_device = frozenset(ordered[: round(trained * count)])
    return Arrangement(resident=frozenset(ordered), trained=on_device)


def host_bytes(setup: Setup, layout: ParameterLayout, gradients: torch.dtype | None = None) -> int:
    """Return the bytes of weights, moments and gradient sums in host memory.

    It needs PyTorch alone, which the product's estimate (`atom.plan.footprint`) does not.
    `gradients`: None: the setup's dtype.
    """
    form, sums = StateForm(setup.layout), gradients or PRECISIONS[setup.gradients]
    arenas = state_arenas(layout, form, optimizer_state(AdamW(), layout, form))
    state_bytes = sum(arena.size_bytes for arena in arenas.values())
    sums_bytes = layout.trained_elements * sums.itemsize
    return state_bytes + sums_bytes + beside_bytes(layout, setup.dtype, form)


def _choice(graph: Graph, setup: Setup) -> Choice | None:
    """Return the planner's choice if there is a cap.

    Raises:
        DeviceError: no plan fits.
    """
    if setup.gpu_bytes is None:
        return None
    leaving = PRECISIONS[setup.gradients].itemsize
    device, trained_bytes = setup.torch_device, 0
    if device.type == "cuda" and setup.gradients == "float32":
        with suppress(DeviceError):  # without NVRTC nothing is trained on the device
            device_kernels(device)
            kept = host_bytes(setup, graph.layout, torch.float32)
            trained_bytes = -(-kept // graph.layout.total_elements)
    planner = Planner(graph, device, setup.micro_batches, leaving, trained_bytes)
    layers, link = measure_layers(graph, device), measure_link(device)
    profile = measured_graph(graph, device, layers, link)
    return planner.choose(profile, int(setup.gpu_bytes * PLANNED_SHARE))
