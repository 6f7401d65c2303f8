"""Measurement of layers and of copies on the device that will run them.

Layers are measured one at a time, with made-up weights and inputs, so no model is too large. Each
sample starts in the state that a layer finds during training: its inputs have just been made, but
its parameters have not been used for a while. A loop over one layer would keep the parameters in
the processor's caches; on a CPU its result would be up to a tenth faster than the layer is between
others. So other data passes through the caches before each sample.

Measurements are stored on disk, in one small JSON file per graph and device. Files only save time:
a file that is not a valid measurement of the graph is ignored, and the graph is measured again.
"""

import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import fx, nn

from atom.base.errors import DeviceError
from atom.graph.chain import ADDED, Machine, Seconds
from atom.graph.costs.seconds import BUSY_SHARE, Profile, measured_graph
from atom.graph.ir import Program, SubModel, ValueSpec
from atom.graph.layers import Layer, layers_of
from atom.graph.program import build_program, load
from atom.graph.segment import bind
from atom.graph.traced import Graph
from atom.graph.traced import bind as arguments

Stopwatch = Callable[[torch.device], float]
"""Function that waits for the device and returns seconds since an arbitrary start."""
OnProgress = Callable[[int, int], None]
"""Callback for progress with the arguments (done, total).

Equal numbers mean the end; a total of 0 means that the measurement failed.
"""
_MIN_SAMPLING_S = 0.2
"""Small layers are sampled more often than requested, until all samples take this long."""
_MAX_REPEATS = 40
_PATTERN_ELEMENTS = 2**20
_FORMAT = 8
"""Version of the measurement and of its file."""
_BUFFER_ELEMENTS = 16 * 2**20
_HOST_ELEMENTS = 64 * 2**20
"""Size of a tensor that exceeds the caches of a GPU's host."""
_CACHES_BYTES = 16 * 2**20
"""Bytes that exceed the caches of one core. The cache shared by all cores may be larger, but then a
small model stays in it during training, too."""


def now(device: torch.device) -> float:
    """Wait for the device and return the seconds of a monotonic clock (the default stopwatch)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure_layers(
    graph: Graph,
    device: torch.device,
    repeats: int = 5,
    stopwatch: Stopwatch = now,
    on_progress: OnProgress = lambda done, total: None,
) -> tuple[Seconds, ...]:
    """Measure the forward and backward of each layer on a device. Equal layers are measured once.

    The parameters and inputs of only one layer exist at a time.

    Args:
        graph: the traced model.
        device: device to measure.
        repeats: least number of samples per layer.
        stopwatch: clock, read by the working thread. A clock of thread time excludes the time that
            other programs take.
        on_progress: callback with the number of layers measured so far, and of all distinct layers.

    Returns:
        Median seconds of each layer of `graph`, in order.

    Raises:
        DeviceError: a layer does not fit the device.
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
                    on_progress(len(measured), distinct)
                    bound = index_bound(graph, layer)
                    sample = _sampler(program, sub_model, make(), bound, stopwatch, device)
                    measured[key] = _median(sample, repeats)
                    del sample
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"a layer of {graph.model_name} does not fit the device with its activations",
            "use smaller micro-batches or a larger device",
        ) from error
    finally:
        on_progress(len(measured), distinct if len(measured) == distinct else 0)
        if device.type == "cuda":  # PyTorch would keep the memory, but other streams will need it
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
    return tuple(measured[key] for key in keys)


def _key(program: Program, sub_model: SubModel) -> Hashable:
    """Return a key that is equal for layers with equal computations and forms of values."""
    inputs = tuple(program.values[name] for name in sub_model.inputs)
    shapes = tuple(program.layout.by_name[name].shape for _, name in sub_model.parameters)
    return sub_model.layers, inputs, shapes


def index_bound(graph: Graph, layer: Layer) -> int:
    """Return the bound (exclusive) of integers that are valid indices in all tables of a layer.

    Random indices below the bound matter because looking up one row only would be too fast. The
    bound is 1 (all indices are zero) if the layer has no known table.
    """
    return min((rows for call in layer.calls for rows in _table_rows(graph, call)), default=1)


def _table_rows(graph: Graph, call: fx.Node) -> Iterator[int]:
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


def _median(sample: Callable[[], tuple[float, float]], repeats: int) -> Seconds:
    sample()  # the first run chooses kernels and fills caches
    samples: list[tuple[float, float]] = []
    while len(samples) < repeats or (
        sum(map(sum, samples)) < _MIN_SAMPLING_S and len(samples) < _MAX_REPEATS
    ):
        samples.append(sample())
    return Seconds(*map(median, zip(*samples, strict=True)))


def _sampler(
    program: Program,
    layer: SubModel,
    module: nn.Module,
    index_bound: int,
    stopwatch: Stopwatch,
    device: torch.device,
) -> Callable[[], tuple[float, float]]:
    """Return a function that runs a layer once and returns seconds of its forward and backward.

    Parameters and inputs are made up.
    """
    names, dtype = (name for _, name in layer.parameters), program.parameter_dtype
    specs = (program.layout.by_name[name] for name in names)
    bind(module, layer, {s.name: _values(s.numel, dtype, device).view(s.shape) for s in specs})
    for parameter in module.parameters():
        if parameter.requires_grad:
            total = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
            parameter.register_post_accumulate_grad_hook(partial(_add, total))  # type: ignore[no-untyped-call]
    other_data = torch.zeros(_CACHES_BYTES, dtype=torch.uint8, device=device)

    def sample() -> tuple[float, float]:
        other_data.add_(1)
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

    return sample


def _input(spec: ValueSpec, index_bound: int, device: torch.device) -> torch.Tensor:
    if spec.dtype.is_floating_point:
        value = torch.rand(spec.shape, device=device).to(spec.dtype)
    else:
        bound = 1 if spec.dtype is torch.bool else index_bound
        value = torch.randint(0, bound, spec.shape, dtype=spec.dtype, device=device)
    return value.requires_grad_(spec.needs_grad)


def _values(numel: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a flat tensor of small numbers of both signs.

    A random pattern is repeated, because drawing billions of numbers takes minutes. Equal numbers
    would give subnormal results, which a CPU computes many times slower.
    """
    pattern = torch.empty(min(numel, _PATTERN_ELEMENTS), device=device).uniform_(-0.05, 0.05)
    return pattern.to(dtype).repeat(-(-numel // max(1, pattern.numel())))[:numel]


def _add(total: torch.Tensor, parameter: torch.Tensor) -> None:
    """Add a parameter's gradient to `total` and drop it, as the engine does."""
    assert parameter.grad is not None
    total.add_(parameter.grad)
    parameter.grad = None


def measure_link(
    device: torch.device | str, repeats: int = 5, stopwatch: Stopwatch = now
) -> Machine:
    """Measure the rates of copies between host and device, and of the host's memory.

    A background thread copies flat buffers, in one direction at a time. With a GPU, copies go
    between its memory and page-locked host memory; then the host adds gradients, both by itself and
    during copies. If the device is the CPU, copies to the host are replaced by float32 additions,
    as in training, and the rates of the host's memory stay infinite.

    Args:
        device: device to measure.
        repeats: samples per rate; medians count.
        stopwatch: clock, read by the working thread.
    """
    device = torch.device(device)
    host = torch.ones(_BUFFER_ELEMENTS, pin_memory=device.type == "cuda")
    there = torch.ones(_BUFFER_ELEMENTS, device=device)
    move = partial(torch.Tensor.copy_, non_blocking=True)
    leave = torch.Tensor.add_ if device.type == "cpu" else move

    def rate(action: Callable[[], object]) -> float:
        action()  # the first run touches the memory
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


Measurement = tuple[tuple[Seconds, ...], Machine, float]
"""Seconds of each layer, rates of copies, and the fraction of the device that other programs used
meanwhile."""


def kept_profile(
    directory: Path,
    graph: Graph,
    device: torch.device,
    measure: Callable[[], Measurement],
    remeasure: bool = False,
    is_calm: Callable[[], bool] = lambda: False,
) -> Profile:
    """Return a graph's profile from the stored measurement, or measure and store it.

    All exceptions of `measure` are passed on. A measurement that cannot be stored is used anyway.

    Args:
        directory: folder of the stored measurements; created if needed.
        graph: the traced model.
        device: the device that is measured.
        measure: takes the measurement.
        remeasure: measure even if a measurement is stored.
        is_calm: returns True if other programs leave the device alone now. Then a stored
            measurement that is doubtful is repeated.
    """
    path = directory / file_name(graph, device)
    stored = None if remeasure else _read(path, len(layers_of(graph)))
    if stored is not None and stored[2] > BUSY_SHARE and is_calm():
        stored = None
    layers, link, others_share = stored or measure()
    taken_at = time.time()
    if stored is None:
        rates = list(vars(link).values())
        pairs = [*(list(vars(layer).values()) for layer in layers), rates[:2], rates[2:]]
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps([*pairs, [others_share, 0.0]], indent=1), encoding="utf-8")
    else:
        with suppress(OSError):
            taken_at = path.stat().st_mtime
    profile = measured_graph(graph, device, layers, link)
    return replace(profile, measured_at=taken_at, others_share=others_share)


def file_name(graph: Graph, device: torch.device) -> str:
    """Return the file name of a measurement: a hash of everything that influences it.

    The hash of the graph covers its shapes and precision.
    """
    setting = [device.type, device_name(device), torch.__version__, torch.get_num_threads()]
    key = json.dumps([_FORMAT, graph.graph_hash, *setting])
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def device_name(device: torch.device) -> str:
    """Return the model name of the GPU or CPU on which a measurement is valid."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8", errors="replace") if information.exists() else ""
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return models[0] if models else platform.processor() or platform.machine()


def _read(path: Path, layers: int) -> Measurement | None:
    """Read a stored measurement; return None if there is no valid one of so many layers."""
    try:
        pairs = [(float(first), float(second)) for first, second in json.loads(path.read_bytes())]
        link, host, (others_share, _) = pairs[layers:]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    valid = all(0 <= number < math.inf for pair in pairs if pair is not host for number in pair)
    if not (valid and min(link) > 0 and min(host) > 0):
        return None
    return tuple(Seconds(*pair) for pair in pairs[:layers]), Machine(*link, *host), others_share
