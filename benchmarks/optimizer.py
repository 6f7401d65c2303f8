"""What one step of the host optimizer costs, in each form of the state, beside PyTorch's ways.

All sides take turns in one process, over stores far larger than caches. Seconds of cores tell more
than seconds on a machine that others use too.

`--matrices` measures what Muon adds instead: the orthogonalisation of one matrix, in both formats.

    python benchmarks/optimizer.py
    python benchmarks/optimizer.py --elements 1000000000 --threads 8
    python benchmarks/optimizer.py --matrices 1024x4096 4096x4096 --threads 1
"""

import argparse
import functools
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from sides import Timing, machine, positive, publish, ratio
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from atom.base.clock import BootClock
from atom.graph.ir import ParameterLayout
from atom.optim.adamw import MOMENTS, AdamW, AdamW8Bit
from atom.optim.muon import orthogonal
from atom.optim.optimizer import Optimizer, optimizer_state
from atom.optim.stepper import Stepper
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import HostStore, state_arenas
from atom.swap.state_form import HIGH, LOW, MASTER, StateArena, StateForm

SETTINGS = AdamW()
RATE = 1e-4
CHUNK_ELEMENTS = 2**21
"""Of the way with casts: its scratch memory stays in the last cache."""
BASELINE = "torch fused"
Take = Callable[[int], None]
"""Takes the step of this number, over the whole store."""


@dataclass
class Arenas:
    """What the sides work on: the float32 arenas are shared, each side steps on from the last."""

    elements: int
    wide: dict[str, Tensor] = field(init=False)
    half: dict[str, Tensor] = field(init=False)
    gradients: dict[torch.dtype, Tensor] = field(init=False)
    copy: Tensor = field(init=False)

    def __post_init__(self) -> None:
        def new(dtype: torch.dtype) -> Tensor:
            return allocate_host_memory(self.elements, dtype)

        self.wide = {name: new(torch.float32) for name in (MASTER, *MOMENTS)}
        half = declared(self.elements, StateForm.HALF)
        self.half = {name: new(arena.dtype) for name, arena in half.items()}
        self.gradients = {dtype: new(dtype) for dtype in (torch.float32, torch.bfloat16)}
        self.copy = new(torch.bfloat16)
        noise = torch.randn(min(self.elements, CHUNK_ELEMENTS)) * 1e-3
        for start in range(0, self.elements, CHUNK_ELEMENTS):
            for gradient in self.gradients.values():
                part = gradient[start : start + CHUNK_ELEMENTS]
                part.copy_(noise[: part.numel()])

    def store(self, form: StateForm, precision: torch.dtype) -> HostStore:
        own = {**self.wide, **{name: self.half[name] for name in (HIGH, LOW)}}
        arenas = declared(self.elements, form)
        state = self.half if form is StateForm.HALF else {name: own[name] for name in arenas}
        wide = self.wide[MASTER] if precision == torch.float32 else self.copy
        working = self.half[HIGH] if form.splits else wide
        gradients = self.gradients[torch.float32]
        return HostStore(
            layout_of(self.elements), precision, form, arenas, state, gradients, working
        )


def layout_of(elements: int) -> ParameterLayout:
    return ParameterLayout.of({"all": (elements // 64, 64)})


def declared(elements: int, form: StateForm) -> dict[str, StateArena]:
    layout = layout_of(elements)
    return state_arenas(layout, form, optimizer_state(AdamW(), layout, form))


@dataclass(frozen=True)
class Side:
    name: str
    moved_bytes: int
    """Read and written per parameter, at the least."""
    take: Take
    elements: int


@dataclass
class Runs:
    """Of one side, each a list with one entry per run."""

    seconds: list[float] = field(default_factory=list)
    core_seconds: list[float] = field(default_factory=list)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    if options.matrices:
        sides = [side for shape in options.matrices for side in _products(shape)]
    else:
        sides = list(_sides(Arenas(options.elements // 128 * 128)))
    _publish(options, sides, _measure(sides, options.runs))


def _products(shape: tuple[int, int]) -> Iterator[Side]:
    """What Muon does for one matrix before it changes the weights."""
    matrix = torch.randn(shape)
    for number_format in (torch.float32, torch.bfloat16):
        name = f"orthogonal {shape[0]} x {shape[1]}, {str(number_format).removeprefix('torch.')}"
        take = functools.partial(_orthogonal, matrix, number_format)
        yield Side(name, matrix.element_size(), take, matrix.numel())


def _orthogonal(matrix: Tensor, number_format: torch.dtype, step: int) -> None:
    orthogonal(matrix, number_format)


def _sides(arenas: Arenas) -> Iterator[Side]:
    wide, narrow = torch.float32, torch.bfloat16
    count = arenas.elements
    yield Side(BASELINE, 28, lambda step: _fused(arenas, step), count)
    yield Side("torch cast, fused, cast", 28, lambda step: _with_casts(arenas, step), count)
    yield _ours("ours float32", arenas, StateForm.EXACT, wide, wide)
    for form in StateForm:
        for dtype, name in ((wide, "float32"), (narrow, "bfloat16")):
            title = f"ours {form.value}, {name} gradient"
            yield _ours(title, arenas, form, narrow, dtype)
    yield _other(arenas, AdamW8Bit(), 2 * 2)


def _ours(
    name: str,
    arenas: Arenas,
    form: StateForm,
    precision: torch.dtype,
    gradient_type: torch.dtype,
) -> Side:
    store, gradient = arenas.store(form, precision), arenas.gradients[gradient_type]
    stepper = Stepper(store, SETTINGS, BootClock())
    copied = 0 if form.splits or precision == torch.float32 else precision.itemsize
    element_bytes = sum(arena.dtype.itemsize for arena in store.arenas.values())

    def take(step: int) -> None:
        stepper.begin(gradient, RATE, step)
        stepper.wait()

    moved_bytes = 2 * element_bytes + copied + gradient.itemsize
    return Side(name, moved_bytes, take, arenas.elements)


def _other(arenas: Arenas, optimizer: Optimizer, moved_bytes: int) -> Side:
    """Split weights, bfloat16 gradient, whatever else the optimizer keeps. `moved_bytes`: of its
    state, per parameter, once in and once out."""
    layout, gradient = layout_of(arenas.elements), arenas.gradients[torch.bfloat16]
    declared_state = optimizer_state(optimizer, layout, StateForm.SPLIT)
    store = HostStore.allocate(
        layout, torch.bfloat16, form=StateForm.SPLIT, optimizer_state=declared_state
    )
    stepper = Stepper(store, optimizer, BootClock())

    def take(step: int) -> None:
        stepper.begin(gradient, RATE, step)
        stepper.wait()

    name = f"{type(optimizer).__name__}, split, bfloat16 gradient"
    return Side(name, 2 * 4 + moved_bytes + gradient.itemsize, take, arenas.elements)


def _fused(arenas: Arenas, step: int) -> None:
    """In place, one call, no copy for a device."""
    torch_step(arenas, slice(None), arenas.gradients[torch.float32], step)


def _with_casts(arenas: Arenas, step: int) -> None:
    """bfloat16 gradients in, bfloat16 weights out, in chunks."""
    for start in range(0, arenas.elements, CHUNK_ELEMENTS):
        where = slice(start, start + CHUNK_ELEMENTS)
        torch_step(arenas, where, arenas.gradients[torch.bfloat16][where].float(), step)
        arenas.copy[where].copy_(arenas.wide[MASTER][where])


def torch_step(arenas: Arenas, where: slice, gradient: Tensor, step: int) -> None:
    """PyTorch's fused one, of the float32 arenas."""
    mean, square = (arenas.wide[name][where] for name in MOMENTS)
    steps = torch.tensor(float(step - 1))
    torch_adamw(
        [arenas.wide[MASTER][where]], [gradient], [mean], [square], [], [steps], fused=True,
        amsgrad=False, beta1=SETTINGS.betas[0], beta2=SETTINGS.betas[1], lr=RATE,
        weight_decay=SETTINGS.weight_decay, eps=SETTINGS.epsilon, maximize=False,
    )  # fmt: skip


def _measure(sides: Sequence[Side], count: int) -> list[Runs]:
    """Per side. The first round warms up and is dropped; every second one goes backwards."""
    measured = [Runs() for _ in sides]
    for number in range(count + 1):
        order = list(zip(sides, measured, strict=True))
        for side, runs in order if number % 2 else reversed(order):
            _run(side, number + 1, runs if number else Runs())
    return measured


def _run(side: Side, step: int, runs: Runs) -> None:
    gc.collect()
    started, cores_started = time.perf_counter(), time.process_time()
    side.take(step)
    runs.seconds.append(time.perf_counter() - started)
    runs.core_seconds.append(time.process_time() - cores_started)


def _publish(options: argparse.Namespace, sides: Sequence[Side], measured: Sequence[Runs]) -> None:
    baseline = Timing(tuple(measured[0].seconds))
    figures = {
        side.name: _figures(side, runs, baseline)
        for side, runs in zip(sides, measured, strict=True)
    }
    titles = ["side", "Mparam/s", "per core", "ratio of seconds", "GB/s"]
    body = {
        "benchmark": "optimizer",
        "machine": machine(),
        "threads": options.threads,
        "sides": figures,
    }
    publish(titles, [_row(name, figure) for name, figure in figures.items()], body)


def _figures(side: Side, runs: Runs, baseline: Timing) -> dict[str, Any]:
    timing, elements = Timing(tuple(runs.seconds)), side.elements
    return {
        "elements": elements,
        "seconds": timing.to_json(),
        "parameters_per_s": elements / timing.median_s,
        "parameters_per_core_s": elements / statistics.median(runs.core_seconds),
        "moved_bytes_per_parameter": side.moved_bytes,
        "moved_bytes_per_s": elements * side.moved_bytes / timing.median_s,
        "ratio": ratio(timing, baseline),
    }


def _row(name: str, figures: dict[str, Any]) -> list[str]:
    return [
        name,
        f"{figures['parameters_per_s'] / 1e6:,.1f}",
        f"{figures['parameters_per_core_s'] / 1e6:,.1f}",
        f"{figures['ratio']:.2f}",
        f"{figures['moved_bytes_per_s'] / 1e9:.1f}",
    ]


def _shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    return positive(rows), positive(columns)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    # No power of two: arenas at such distances get into each other's way in the first cache.
    parser.add_argument("--elements", type=positive, default=50_000_000, help="parameters")
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--runs", type=positive, default=7)
    parser.add_argument("--matrices", nargs="+", type=_shape, default=[], help="ROWSxCOLUMNS")
    return parser.parse_args()


if __name__ == "__main__":
    main()
