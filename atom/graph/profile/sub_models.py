"""Seconds of sub-models and of copies, measured on the device that will run them.

Each sample begins as an engine's does: its inputs were made just now, its parameters were not used
for a while. A loop over one sub-model keeps those in the processor's caches, and on a CPU comes
out up to a tenth faster than the sub-model ever is among others. So something else goes through
the caches before each sample.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

from atom.graph.chain import Machine
from atom.graph.ir import Program, SubModel
from atom.graph.program import bind, load

Stopwatch = Callable[[torch.device], float]
"""Seconds since whenever, read once the device has done what it was given."""
Told = Callable[[int, int], None]
"""(done, of how many); as many: that is the end; of 0: it broke off."""
_ENOUGH_S = 0.2
"""Small sub-models are measured more often than asked, until they have run this long."""
_MOST_REPEATS = 40
_PATTERN_ELEMENTS = 2**20
_BUFFER_BYTES = 64 * 2**20
_CACHES_BYTES = 16 * 2**20
"""More than one core's own. What all share may be larger; a small model stays there in earnest."""


def now(device: torch.device) -> float:
    """The usual stopwatch: a steady clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass(frozen=True)
class SubModelSeconds:
    """Medians, of one micro-batch. `backward_s` does not include the recomputed forward, but the
    sums of parameters' gradients in float32."""

    forward_s: float
    backward_s: float


def profile(
    program: Program,
    device: torch.device | str,
    repeats: int = 5,
    index_bounds: Mapping[str, int] | None = None,
    stopwatch: Stopwatch = now,
    told: Told = lambda done, total: None,
) -> tuple[SubModelSeconds, ...]:
    """One entry per sub-model. Sub-models that share a class are measured once; each is dropped
    before the next, so that a model of any size is measured on one small device. `told`: how many
    of the distinct ones are measured, and how many there are.

    Compile with the finest cut to measure layer by layer. Integer inputs are random below their
    bound in `index_bounds`, by name; zero without one.
    """
    device, bounds = torch.device(device), index_bounds or {}
    measured: dict[Hashable, SubModelSeconds] = {}
    keys = [_key(program, sub_model) for sub_model in program.sub_models]
    factories = load(program, device)
    distinct = len(set(keys))
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for key, sub_model, make in zip(keys, program.sub_models, factories, strict=True):
                if key not in measured:
                    told(len(measured), distinct)
                    bench = _Bench(program, sub_model, make, device, bounds, stopwatch)
                    measured[key] = bench.measure(repeats)
                    del bench
    finally:
        told(len(measured), distinct if len(measured) == distinct else 0)
    return tuple(measured[key] for key in keys)


def _key(program: Program, sub_model: SubModel) -> Hashable:
    """Equal for sub-models that do the same to values that look the same."""
    values = (program.values[name] for name in sub_model.inputs)
    inputs = tuple((value.shape, value.dtype, value.needs_grad) for value in values)
    shapes = tuple(program.layout.by_name[name].shape for _, name in sub_model.parameters)
    return sub_model.class_name, inputs, shapes


class _Bench:
    """One sub-model on the device, with made-up parameters and inputs."""

    def __init__(
        self,
        program: Program,
        sub_model: SubModel,
        make: Callable[[], nn.Module],
        device: torch.device,
        bounds: Mapping[str, int],
        stopwatch: Stopwatch,
    ) -> None:
        self._program, self._sub_model, self._device = program, sub_model, device
        self._bounds, self._stopwatch = bounds, stopwatch
        self._something_else = torch.zeros(_CACHES_BYTES, dtype=torch.uint8, device=device)
        self._module = make()
        parameters = self._parameters()
        bind(self._module, sub_model, parameters)
        self._sums = {
            name: torch.zeros_like(parameter, dtype=torch.float32)
            for name, parameter in parameters.items()
            if name not in program.frozen
        }
        self._sum_gradients()

    def measure(self, repeats: int) -> SubModelSeconds:
        self._once()  # chooses kernels and fills caches
        forward: list[float] = []
        backward: list[float] = []
        while len(forward) < repeats or (
            sum(forward) + sum(backward) < _ENOUGH_S and len(forward) < _MOST_REPEATS
        ):
            there, back = self._once()
            forward.append(there)
            backward.append(back)
        return SubModelSeconds(median(forward), median(backward))

    def _once(self) -> tuple[float, float]:
        self._something_else.add_(1)
        inputs = self._inputs()
        start = self._stopwatch(self._device)
        outputs = self._module(*inputs)
        between = self._stopwatch(self._device)
        roots = [output for output in outputs if output.requires_grad]
        gradients = [torch.ones_like(root) for root in roots]
        begin = self._stopwatch(self._device)
        if roots:
            torch.autograd.backward(roots, gradients)
        return between - start, self._stopwatch(self._device) - begin

    def _parameters(self) -> dict[str, torch.Tensor]:
        layout, dtype = self._program.layout.by_name, self._program.parameter_dtype
        return {
            name: _made_up(layout[name].numel, dtype, self._device).view(layout[name].shape)
            for name in {name for _, name in self._sub_model.parameters}
        }

    def _sum_gradients(self) -> None:
        """Each gradient is added up as soon as it is there, and dropped."""
        for path, name in self._sub_model.parameters:
            parameter = self._module.get_parameter(path)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    _adder(self._sums[name])
                )

    def _inputs(self) -> list[torch.Tensor]:
        return [self._input(name) for name in self._sub_model.inputs]

    def _input(self, name: str) -> torch.Tensor:
        spec = self._program.values[name]
        if spec.dtype.is_floating_point:
            value = torch.rand(spec.shape, device=self._device).to(spec.dtype)
        elif name in self._bounds:
            bound = self._bounds[name]
            value = torch.randint(0, bound, spec.shape, dtype=spec.dtype, device=self._device)
        else:
            value = torch.zeros(spec.shape, dtype=spec.dtype, device=self._device)
        return value.requires_grad_(spec.needs_grad)


def _made_up(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Small numbers of both signs, flat. A pattern repeated: drawing billions takes minutes, and
    equal ones give results so small that a CPU computes them many times slower."""
    pattern = torch.empty(min(numel, _PATTERN_ELEMENTS), device=device).uniform_(-0.05, 0.05)
    return pattern.to(dtype).repeat(-(-numel // max(1, pattern.numel())))[:numel]


def _adder(total: torch.Tensor) -> Callable[[torch.Tensor], None]:
    def add(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        total.add_(parameter.grad)
        parameter.grad = None

    return add


def measure_link(
    device: torch.device | str,
    repeats: int = 5,
    buffer_bytes: int = _BUFFER_BYTES,
    stopwatch: Stopwatch = now,
) -> Machine:
    """Plain copies of flat buffers, one way after the other.

    On a GPU between its memory and page-locked host memory. Where the device is the CPU, by a
    background thread, as loads are there: a copy in, and float32 sums out.
    """
    device = torch.device(device)
    elements = max(1, buffer_bytes // torch.float32.itemsize)
    host = torch.ones(elements, pin_memory=device.type == "cuda")
    there = torch.ones(elements, device=device)

    def load() -> None:
        there.copy_(host, non_blocking=True)

    def gradients_out() -> None:
        if device.type == "cpu":
            host.add_(there)
        else:
            host.copy_(there, non_blocking=True)

    size_bytes = elements * torch.float32.itemsize
    with ThreadPoolExecutor(1, "atom-profile") as background:

        def rate(action: Callable[[], None]) -> float:
            samples = background.submit(_samples, action, device, repeats, stopwatch).result()
            return size_bytes / median(samples)

        return Machine(rate(load), rate(gradients_out))


def _samples(
    action: Callable[[], object], device: torch.device, repeats: int, stopwatch: Stopwatch
) -> list[float]:
    """Seconds of each repeat, after a first one that touches the memory."""
    action()
    samples = []
    for _ in range(repeats):
        start = stopwatch(device)
        action()
        samples.append(max(stopwatch(device) - start, 1e-9))
    return samples
