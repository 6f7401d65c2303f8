"""Cost of one step of the host optimizer, in each form of the state, beside PyTorch's ways.

All sides take turns in one process, over stores far larger than caches. Seconds of cores tell more
than seconds on a machine that other programs use too.

`--matrices` measures instead the work that Muon adds: the orthogonalisation of one matrix, in both
formats.

    python -m benchmarks.optimizer.run
    python -m benchmarks.optimizer.run --elements 1000000000 --threads 8
    python -m benchmarks.optimizer.run --matrices 1024x4096 4096x4096 --threads 1
"""

import functools
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw as torch_adamw

from atom.base.clock import BootClock
from atom.graph.ir import ParameterLayout
from atom.optim.adamw import MOMENTS, AdamW, AdamW8Bit
from atom.optim.muon import orthogonal
from atom.optim.optimizer import Optimizer, optimizer_state
from atom.optim.stepper import Stepper
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import HIGH, LOW, MASTER, HostStore, StateArena, StateForm, state_arenas
from benchmarks.shared.program import Timing, parser_of, positive, publish, ratio

SETTINGS = AdamW()
RATE = 1e-4
CHUNK_ELEMENTS = 2**21
"""Chunk of the side with casts: its scratch memory stays in the last cache."""
BASELINE = "torch fused"
COLUMNS = {"side": "", "Mparam/s": ",.1f", "Mparam/s per core": ",.1f", "ratio of seconds": ".2f"}
Take = Callable[[int], None]
"""Function that takes the step of this number, over the whole store."""


@dataclass
class Arenas:
    """Memory of all sides. The float32 arenas are shared: each side goes on from the last one."""

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
    take: Take
    elements: int


def main() -> None:
    matrices = {"nargs": "+", "type": _shape, "default": [], "help": "ROWSxCOLUMNS"}
    # No power of two: arenas at such distances collide in the first cache.
    parser = parser_of(
        __doc__,
        elements=50_000_000,
        threads=len(os.sched_getaffinity(0)),
        runs=7,
        matrices=matrices,
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.matrices:
        sides = [side for shape in options.matrices for side in _products(shape)]
    else:
        sides = list(_sides(Arenas(options.elements // 128 * 128)))
    publish("optimizer", measured(sides, options.runs), COLUMNS, threads=options.threads)


def _products(shape: tuple[int, int]) -> Iterator[Side]:
    """Yield the sides that orthogonalise one matrix, as Muon does before it changes weights."""
    matrix = torch.randn(shape)
    for number_format in (torch.float32, torch.bfloat16):
        name = f"orthogonal {shape[0]} x {shape[1]}, {str(number_format).removeprefix('torch.')}"
        take = functools.partial(_orthogonal, matrix, number_format)
        yield Side(name, take, matrix.numel())


def _orthogonal(matrix: Tensor, number_format: torch.dtype, step: int) -> None:
    orthogonal(matrix, number_format)


def _sides(arenas: Arenas) -> Iterator[Side]:
    wide, narrow = torch.float32, torch.bfloat16
    count = arenas.elements
    yield Side(BASELINE, lambda step: _fused(arenas, step), count)
    yield Side("torch cast, fused, cast", lambda step: _with_casts(arenas, step), count)
    yield _ours("ours float32", arenas, StateForm.EXACT, wide, wide)
    for form in StateForm:
        for dtype, name in ((wide, "float32"), (narrow, "bfloat16")):
            title = f"ours {form.value}, {name} gradient"
            yield _ours(title, arenas, form, narrow, dtype)
    yield _other(arenas, AdamW8Bit())


def _ours(
    name: str, arenas: Arenas, form: StateForm, precision: torch.dtype, gradient: torch.dtype
) -> Side:
    store = arenas.store(form, precision)
    return Side(name, _taking(store, SETTINGS, arenas.gradients[gradient]), arenas.elements)


def _other(arenas: Arenas, optimizer: Optimizer) -> Side:
    """Return a side with split weights and a bfloat16 gradient."""
    layout, form = layout_of(arenas.elements), StateForm.SPLIT
    state = optimizer_state(optimizer, layout, form)
    store = HostStore.allocate(layout, torch.bfloat16, form=form, optimizer_state=state)
    name = f"{type(optimizer).__name__}, split, bfloat16 gradient"
    take = _taking(store, optimizer, arenas.gradients[torch.bfloat16])
    return Side(name, take, arenas.elements)


def _taking(store: HostStore, optimizer: Optimizer, gradient: Tensor) -> Take:
    stepper = Stepper(store, optimizer, BootClock())

    def take(step: int) -> None:
        stepper.begin(gradient, RATE, step)
        stepper.wait()

    return take


def _fused(arenas: Arenas, step: int) -> None:
    """Step in place, in one call, without a copy for a device."""
    torch_step(arenas, slice(None), arenas.gradients[torch.float32], step)


def _with_casts(arenas: Arenas, step: int) -> None:
    """Step from bfloat16 gradients to bfloat16 weights, in chunks."""
    for start in range(0, arenas.elements, CHUNK_ELEMENTS):
        where = slice(start, start + CHUNK_ELEMENTS)
        torch_step(arenas, where, arenas.gradients[torch.bfloat16][where].float(), step)
        arenas.copy[where].copy_(arenas.wide[MASTER][where])


def torch_step(arenas: Arenas, where: slice, gradient: Tensor, step: int) -> None:
    """Take PyTorch's fused AdamW step on the float32 arenas."""
    mean, square = (arenas.wide[name][where] for name in MOMENTS)
    steps = torch.tensor(float(step - 1))
    torch_adamw(
        [arenas.wide[MASTER][where]], [gradient], [mean], [square], [], [steps], fused=True,
        amsgrad=False, beta1=SETTINGS.betas[0], beta2=SETTINGS.betas[1], lr=RATE,
        weight_decay=SETTINGS.weight_decay, eps=SETTINGS.epsilon, maximize=False,
    )  # fmt: skip


def measured(sides: Sequence[Side], count: int) -> list[dict[str, Any]]:
    """Return the figures of each side.

    The first round warms up and is dropped; the order is reversed in every other round.
    """
    runs: list[list[tuple[float, float]]] = [[] for _ in sides]
    for number in range(count + 1):
        order = list(zip(sides, runs, strict=True))
        for side, own in order if number % 2 else reversed(order):
            own.append(_run(side, number + 1))
    timings = [Timing(tuple(seconds for seconds, _ in own[1:])) for own in runs]
    return [
        {
            "side": side.name,
            "elements": side.elements,
            "seconds": timing,
            "Mparam/s": side.elements / timing.median_s / 1e6,
            "Mparam/s per core": side.elements / statistics.median(c for _, c in own[1:]) / 1e6,
            "ratio of seconds": ratio(timing, timings[0]),
        }
        for side, timing, own in zip(sides, timings, runs, strict=True)
    ]


def _run(side: Side, step: int) -> tuple[float, float]:
    """Take a step; return its seconds and its core seconds."""
    gc.collect()
    started, cores_started = time.perf_counter(), time.process_time()
    side.take(step)
    return time.perf_counter() - started, time.process_time() - cores_started


def _shape(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    return positive(rows), positive(columns)


if __name__ == "__main__":
    main()
