"""Seconds of layers and rates of copies, measured on the device that will run them.

One layer at a time, with made-up weights and inputs, so that no model is too large. Each sample
begins as an engine's does: its inputs were made just now, its parameters were not used for a while.
A loop over one layer keeps those in the processor's caches, and on a CPU comes out up to a tenth
faster than the layer ever is among others. So something else goes through the caches before each
sample.

Measurements are kept on disk: one small JSON file per graph and device. A file is only ever a
saving of time: what cannot be read as a measurement of this graph is measured anew.
"""

import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import fx, nn

from atom.base.errors import DeviceError
from atom.graph.chain import ADDED, Machine, Seconds
from atom.graph.ir import Program, SubModel, ValueSpec
from atom.graph.layers import Layer, layers_of
from atom.graph.profile.seconds import Profile, measured_graph
from atom.graph.program import build_program, load
from atom.graph.segment import bind
from atom.graph.traced import Graph
from atom.graph.traced import bind as arguments

Stopwatch = Callable[[torch.device], float]
"""Seconds since whenever, read once the device has done what it was given."""
Told = Callable[[int, int], None]
"""(done, of how many); as many: that is the end; of 0: it broke off."""
_ENOUGH_S = 0.2
"""Small layers are measured more often than asked, until they have run this long."""
_MOST_REPEATS = 40
_PATTERN_ELEMENTS = 2**20
_FORMAT = 7
_BUFFER_ELEMENTS = 16 * 2**20
_HOST_ELEMENTS = 64 * 2**20
"""More than the caches of a GPU's host."""
_CACHES_BYTES = 16 * 2**20
"""More than one core's own. What all share may be larger; a small model stays there in earnest."""


def now(device: torch.device) -> float:
    """The usual stopwatch: a steady clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure_layers(
    graph: Graph,
    device: torch.device,
    repeats: int = 5,
    stopwatch: Stopwatch = now,
    told: Told = lambda done, total: None,
) -> tuple[Seconds, ...]:
    """Runs every distinct layer forward and backward on the device, each alone; at any time the
    parameters and inputs of one exist. Medians.

    `stopwatch` is read by the thread that works: one that counts a thread's own seconds leaves out
    what other programs took meanwhile. `told`: how many layers are measured, and of how many.

    Raises: DeviceError if a layer does not fit the device.
    """
    program, layers = build_program(graph), layers_of(graph)
    keys = [_key(program, sub_model) for sub_model in program.sub_models]
    measured: dict[Hashable, Seconds] = {}
    distinct = len(set(keys))
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            parts = zip(keys, layers, program.sub_models, load(program, device), strict=True)
            for key, layer, sub_model, make in parts:
                if key not in measured:
                    told(len(measured), distinct)
                    bound = index_bound(graph, layer)
                    once = _sampled(program, sub_model, make(), bound, stopwatch, device)
                    measured[key] = _median(once, repeats)
                    del once
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"a layer of {graph.model_name} does not fit the device with its activations",
            "take smaller micro-batches, or profile on a larger device",
        ) from error
    finally:
        told(len(measured), distinct if len(measured) == distinct else 0)
        if device.type == "cuda":  # PyTorch keeps it for this stream, and others will compute
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
    return tuple(measured[key] for key in keys)


def _key(program: Program, sub_model: SubModel) -> Hashable:
    """Equal for layers that do the same to values that look the same."""
    inputs = tuple(program.values[name] for name in sub_model.inputs)
    shapes = tuple(program.layout.by_name[name].shape for _, name in sub_model.parameters)
    return sub_model.layers, inputs, shapes


def index_bound(graph: Graph, layer: Layer) -> int:
    """Below what integers must stay to be valid in all tables that the layer looks up. A table
    looked up at one row only is faster than it is in earnest, so zeros are a last resort."""
    return min((rows for call in layer.calls for rows in _rows(graph, call)), default=1)


def _rows(graph: Graph, call: fx.Node) -> Iterator[int]:
    name = str(getattr(call.target, "_opname", ""))
    table = call.args[0] if call.args else None
    if isinstance(table, fx.Node) and table in graph.specs:
        shape = graph.specs[table].shape
        if name == "embedding":
            yield shape[0]
        if name in ("cross_entropy_loss", "nll_loss", "nll_loss_nd"):
            yield shape[min(1, len(shape) - 1)]
        if name in ("gather", "index_select"):
            yield shape[int(str(arguments(call)["dim"]))]


def _median(once: Callable[[], tuple[float, float]], repeats: int) -> Seconds:
    once()  # chooses kernels and fills caches
    samples: list[tuple[float, float]] = []
    while len(samples) < repeats or (
        sum(map(sum, samples)) < _ENOUGH_S and len(samples) < _MOST_REPEATS
    ):
        samples.append(once())
    return Seconds(*map(median, zip(*samples, strict=True)))


def _sampled(
    program: Program,
    layer: SubModel,
    module: nn.Module,
    index_bound: int,
    stopwatch: Stopwatch,
    device: torch.device,
) -> Callable[[], tuple[float, float]]:
    """Runs a layer with made-up parameters and inputs: seconds of its forward and its backward."""
    names, dtype = (name for _, name in layer.parameters), program.parameter_dtype
    specs = (program.layout.by_name[name] for name in names)
    bind(module, layer, {s.name: _made_up(s.numel, dtype, device).view(s.shape) for s in specs})
    for parameter in module.parameters():
        if parameter.requires_grad:
            total = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
            parameter.register_post_accumulate_grad_hook(partial(_add, total))  # type: ignore[no-untyped-call]
    something_else = torch.zeros(_CACHES_BYTES, dtype=torch.uint8, device=device)

    def once() -> tuple[float, float]:
        something_else.add_(1)
        inputs = [_input(program.values[name], index_bound, device) for name in layer.inputs]
        start = stopwatch(device)
        outputs = module(*inputs)
        between = stopwatch(device)
        roots = [output for output in outputs if output.requires_grad]
        gradients = [torch.ones_like(root) for root in roots]
        begin = stopwatch(device)
        if roots:
            torch.autograd.backward(roots, gradients)
        return between - start, stopwatch(device) - begin

    return once


def _input(spec: ValueSpec, index_bound: int, device: torch.device) -> torch.Tensor:
    if spec.dtype.is_floating_point:
        value = torch.rand(spec.shape, device=device).to(spec.dtype)
    else:
        bound = 1 if spec.dtype is torch.bool else index_bound
        value = torch.randint(0, bound, spec.shape, dtype=spec.dtype, device=device)
    return value.requires_grad_(spec.needs_grad)


def _made_up(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Small numbers of both signs, flat. A pattern repeated: drawing billions takes minutes, and
    equal ones give results so small that a CPU computes them many times slower."""
    pattern = torch.empty(min(numel, _PATTERN_ELEMENTS), device=device).uniform_(-0.05, 0.05)
    return pattern.to(dtype).repeat(-(-numel // max(1, pattern.numel())))[:numel]


def _add(total: torch.Tensor, parameter: torch.Tensor) -> None:
    """Each gradient is added up as soon as it is there, and dropped."""
    assert parameter.grad is not None
    total.add_(parameter.grad)
    parameter.grad = None


def measure_link(
    device: torch.device | str, repeats: int = 5, stopwatch: Stopwatch = now
) -> Machine:
    """Plain copies of flat buffers, one way after the other.

    On a GPU between its memory and page-locked host memory; and what the host adds, by itself and
    beside a copy. Where the device is the CPU, by a background thread, as loads are there: a copy
    in, and float32 sums out.
    """
    device = torch.device(device)
    host = torch.ones(_BUFFER_ELEMENTS, pin_memory=device.type == "cuda")
    there = torch.ones(_BUFFER_ELEMENTS, device=device)
    move = partial(torch.Tensor.copy_, non_blocking=True)
    leave = torch.Tensor.add_ if device.type == "cpu" else move

    def rate(action: Callable[[], object]) -> float:
        action()  # touches the memory
        samples = []
        for _ in range(repeats):
            start = stopwatch(device)
            action()
            samples.append(max(stopwatch(device) - start, 1e-9))
        return host.nbytes / median(samples)

    with ThreadPoolExecutor(1, "atom-profile") as background:
        load_rate = background.submit(rate, lambda: move(there, host)).result()
        leave_rate = background.submit(rate, lambda: leave(host, there)).result()
    if device.type == "cpu":
        return Machine(load_rate, leave_rate)
    total = torch.zeros(_HOST_ELEMENTS)
    addend, share = torch.ones(_HOST_ELEMENTS), _HOST_ELEMENTS / _BUFFER_ELEMENTS

    def copy_and_add() -> None:
        for _ in range(int(share)):
            move(there, host)
        total.add_(addend)

    alone, both = (share * rate(a) for a in (lambda: total.add_(addend), copy_and_add))
    return Machine(load_rate, leave_rate, ADDED * alone, (1 + ADDED) * both)


Measurement = tuple[tuple[Seconds, ...], Machine]
"""Seconds per layer, and the link."""


def kept_profile(
    directory: Path,
    graph: Graph,
    device: torch.device,
    measure: Callable[[], Measurement],
    again: bool = False,
) -> Profile:
    """From the kept measurement; where there is none of this graph, or it is to be taken `again`,
    from a new one, which is kept if it can be.

    Raises: whatever `measure` raises.
    """
    path = directory / file_name(graph, device)
    kept = None if again else _read(path, len(layers_of(graph)))
    layers, link = kept or measure()
    if kept is None:
        rates = list(vars(link).values())
        content = [*(list(vars(layer).values()) for layer in layers), rates[:2], rates[2:]]
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return measured_graph(graph, device, layers, link)


def file_name(graph: Graph, device: torch.device) -> str:
    """Of all that a measurement depends on. The graph's hash has its shapes and precision."""
    where = [device.type, device_name(device), torch.__version__, torch.get_num_threads()]
    key = json.dumps([_FORMAT, graph.graph_hash, *where])
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def device_name(device: torch.device) -> str:
    """The model of a processor: what a measurement is good for."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    information = Path("/proc/cpuinfo")
    told = information.read_text(encoding="utf-8", errors="replace") if information.exists() else ""
    models = [line.partition(":")[2].strip() for line in told.splitlines() if "model name" in line]
    return models[0] if models else platform.processor() or platform.machine()


def _read(path: Path, layers: int) -> Measurement | None:
    """None: there is no measurement of so many layers."""
    try:
        pairs = [(float(first), float(second)) for first, second in json.loads(path.read_bytes())]
        link, host = pairs[layers:]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    fine = all(0 <= number < math.inf for pair in pairs[:-1] for number in pair)
    if not (fine and min(link) > 0 and min(host) > 0):
        return None
    return tuple(Seconds(*pair) for pair in pairs[:layers]), Machine(*link, *host)
