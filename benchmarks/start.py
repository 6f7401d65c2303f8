"""What a daemon does before its first round, per core, and what that comes to for GPT-3 6.7B.

Host memory is taken and its pages made present, parameters get their first values and are rounded
for the device, and the state is hashed. Each is measured in seconds of cores, of all threads, on a
GPT-3 that fits this machine. Memory is taken twice: a virtual machine may have to get it first from
the machine that it runs on. The last column is arithmetic: it takes so many cores to be so many
times as fast as one, and the driver to register memory at the rates named; nothing of it has been
measured. Memory is taken to be as fast as it was the second time, and as the first time.

    python benchmarks/start.py
    python benchmarks/start.py --size xl --state half --gradients bfloat16
"""

import argparse
import functools
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sides import machine, positive, publish

from atom.graph.ir import ParameterLayout
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, SIZES, GPT3Config, initial_value, parameter_shapes
from atom.optim.adamw import AdamW
from atom.optim.rate import RateSettings
from atom.plan.footprint import Footprint
from atom.swap.device import CpuDevice
from atom.swap.host_store import HostStore
from atom.swap.state_form import StateForm
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.run_optimizer import ReplicaTerms

SEED, VOCABULARY, SEQUENCES = 1, 50304, 1
TARGET, CORES, THREADS = "6.7b", 16, 8
"""A daemon makes first values with no more threads, however many cores there are."""
FIRST, AGAIN = "host memory, first time", "host memory, again"
REGISTER_BYTES_PER_S = (4e9, 22e9)
"""What others report of `cudaHostRegister`, with pages present."""
GRADIENTS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Taken:
    """Seconds of one piece of work."""

    wall_s: float = 0.0
    cores_s: float = 0.0


@dataclass(frozen=True)
class Sized:
    """What the state takes, for a number of parameters."""

    form: StateForm
    gradients: torch.dtype

    def host_bytes(self, elements: int) -> int:
        layout = ParameterLayout.of({"all": (elements,)})
        terms = ReplicaTerms(layout, torch.bfloat16, AdamW(), self.form, self.gradients)
        return Footprint.of(terms, 0).host.total_bytes


def main() -> None:
    options = _options()
    config = _config(options)
    sized = Sized(StateForm(options.state), GRADIENTS[options.gradients])
    taken = {name: Taken() for name in ("tracing", FIRST, AGAIN, "first values", "digest")}
    device = CpuDevice()
    try:
        elements = _start(config, sized, options.threads, device, taken)
    finally:
        device.close()
    _publish(options, elements, sized, taken)


def _start(
    config: GPT3Config, sized: Sized, threads: int, device: CpuDevice, taken: dict[str, Taken]
) -> int:
    """Returns the parameters started with."""
    shape = (SEQUENCES, config.sequence_tokens)
    batch = {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "targets")}
    with _timed(taken["tracing"]):
        program = build_program(trace(GPT3(config, device="meta", dtype=torch.bfloat16), batch))
    with _timed(taken[FIRST]):
        store = HostStore.allocate(
            program.layout, torch.bfloat16, form=sized.form, gradients=sized.gradients
        )
    del store
    settings = ReplicaSettings(
        RateSettings(1e-4),
        precision=torch.bfloat16,
        state_form=sized.form,
        gradients=sized.gradients,
    )
    with _timed(taken[AGAIN]):
        replica = Replica(program, None, settings, device)
    elements = program.layout.total_elements
    with _timed(taken["first values"]):
        replica.initialise(functools.partial(initial_value, config, seed=SEED), threads)
    with _timed(taken["digest"]):
        state_digest(replica.state_arenas())
    return elements


@contextmanager
def _timed(taken: Taken) -> Iterator[None]:
    wall, cores = time.perf_counter(), time.process_time()
    yield
    taken.wall_s = time.perf_counter() - wall
    taken.cores_s = time.process_time() - cores


def _publish(
    options: argparse.Namespace, elements: int, sized: Sized, taken: dict[str, Taken]
) -> None:
    target = GPT3Config.build(size=TARGET, vocabulary_size=VOCABULARY)
    wanted = sum(map(math.prod, parameter_shapes(target).values()))
    there = sized.host_bytes(wanted)
    core_rates = {
        **{name: sized.host_bytes(elements) / taken[name].cores_s for name in (FIRST, AGAIN)},
        "first values": elements / taken["first values"].cores_s,
        "digest": elements / taken["digest"].cores_s,
    }
    foreseen = {
        "tracing": (taken["tracing"].cores_s,) * 2,
        "host memory": tuple(there / core_rates[name] / CORES for name in (AGAIN, FIRST)),
        "registering": tuple(there / rate for rate in reversed(REGISTER_BYTES_PER_S)),
        "first values": (wanted / core_rates["first values"] / THREADS,) * 2,
        "digest": (wanted / core_rates["digest"] / CORES,) * 2,
    }
    total = tuple(sum(seconds[n] for seconds in foreseen.values()) for n in (0, 1))
    body: dict[str, Any] = {
        "benchmark": "start",
        "machine": machine(),
        "size": options.size if options.layers is None else None,
        "parameters": elements,
        "host_bytes": sized.host_bytes(elements),
        "threads": options.threads,
        "seconds": {name: vars(each) for name, each in taken.items()},
        "per_core_second": core_rates,
        "foreseen": {
            "size": TARGET, "cores": CORES, "threads": THREADS, "host_bytes": there,
            "seconds": foreseen, "total_s": total,
        },
    }  # fmt: skip
    rows = [
        [name, f"{each.wall_s:.2f}", f"{each.cores_s:.2f}", _rate(name, core_rates)]
        for name, each in taken.items()
    ]
    arithmetic = f"{TARGET}, {CORES} cores:"
    rows += [[arithmetic, "", "", ""]]
    rows += [[name, _span(s), "", ""] for name, s in {**foreseen, "ready": total}.items()]
    publish(["step", "seconds", "core seconds", "ratio: per core second"], rows, body)


def _rate(name: str, core_rates: dict[str, float]) -> str:
    if name not in core_rates:
        return "-"
    unit, size = ("GB", 1e9) if "memory" in name else ("M parameters", 1e6)
    return f"{core_rates[name] / size:.2f} {unit}"


def _span(seconds: tuple[float, ...]) -> str:
    least, most = min(seconds), max(seconds)
    return f"{least:.0f}" if round(least) == round(most) else f"{least:.0f} to {most:.0f}"


def _config(options: argparse.Namespace) -> GPT3Config:
    if options.layers is not None:
        return GPT3Config(options.layers, 8, options.model_dim, 64, 256)
    return GPT3Config.build(size=options.size, vocabulary_size=VOCABULARY)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="medium")
    parser.add_argument("--layers", type=positive, help="instead of a size, with --model-dim")
    parser.add_argument("--model-dim", type=positive, default=512)
    parser.add_argument("--state", choices=list(StateForm), default="split", type=StateForm)
    parser.add_argument("--gradients", choices=GRADIENTS, default="float32")
    cores = min(len(os.sched_getaffinity(0)), THREADS)
    parser.add_argument("--threads", type=positive, default=cores)
    return parser.parse_args()


if __name__ == "__main__":
    main()
