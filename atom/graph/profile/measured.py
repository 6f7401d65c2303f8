"""A graph's profile, measured: one layer at a time, so that no model is too large."""

import platform
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import fx

from atom.base.errors import DeviceError
from atom.graph.chain import Machine
from atom.graph.profile.assumed import costs_by_layer, layer_profile, reckoned_s
from atom.graph.profile.devices import TYPICAL
from atom.graph.profile.seconds import OperationSeconds, Profile
from atom.graph.profile.sub_models import Stopwatch, Told, measure_link, now, profile
from atom.graph.program import build_program
from atom.graph.traced import Graph, bind


def measure_graph(
    graph: Graph,
    device: torch.device | str,
    repeats: int = 5,
    link: Machine | None = None,
    stopwatch: Stopwatch = now,
    told: Told = lambda done, total: None,
) -> Profile:
    """Runs every distinct layer forward and backward on the device, each alone. Its calls share
    its seconds, as a usual device would take them.

    Parameters and inputs are made up; at any time those of one layer exist. Without `link`, the
    rates of copies to and from the device are measured too. `stopwatch` is read by the thread that
    works: one that counts a thread's own seconds leaves out what other programs took meanwhile.
    `told`: how many layers are measured, and of how many.

    Raises: DeviceError if a layer does not fit the device.
    """
    device = torch.device(device)
    link = link or measure_link(device, stopwatch=stopwatch)
    try:
        program, bounds = build_program(graph), index_bounds(graph)
        timings = profile(program, device, repeats, bounds, stopwatch, told)
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"a layer of {graph.model_name} does not fit the device with its activations",
            "take smaller micro-batches, or profile on a larger device",
        ) from error
    finally:
        if device.type == "cuda":  # PyTorch keeps it for this stream, and others will compute
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
    typical = TYPICAL["cpu" if device.type == "cpu" else "cuda"]
    layers, operations = [], list[OperationSeconds]()
    by_layer = costs_by_layer(graph, fused=device.type == "cuda")
    for (layer, costs), timing in zip(by_layer, timings, strict=True):
        layers.append(layer_profile(graph, layer, costs, timing.forward_s, timing.backward_s))
        forward, backward = zip(*(reckoned_s(cost, typical) for cost in costs), strict=True)
        shares = _shares(timing.forward_s, forward), _shares(timing.backward_s, backward)
        operations += map(OperationSeconds, *shares)
    return Profile("measured", device_name(device), tuple(layers), tuple(operations), link)


def _shares(total: float, weights: Sequence[float]) -> list[float]:
    whole = sum(weights)
    if whole == 0:
        return [total / len(weights)] * len(weights)
    return [total * weight / whole for weight in weights]


def device_name(device: torch.device | str) -> str:
    """The model of a processor: what a measurement is good for."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


_SAME_VALUES = {
    "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand", "slice", "flatten",
    "contiguous", "to", "clone", "detach", "alias", "select", "pad",
}  # fmt: skip


def index_bounds(graph: Graph) -> dict[str, int]:
    """By name, below what every batch entry and value of integers that only looks up must stay, so
    that made-up ones are valid. A table looked up at one row only is faster than it is in earnest,
    so zeros are a last resort.
    """
    bounds = {}
    for node in (*graph.batch, *graph.calls):
        spec = graph.specs.get(node)
        if spec is not None and not spec.dtype.is_floating_point:
            bound = _value_bound(node, graph)
            if bound is not None:
                bounds[graph.value_name(node)] = bound
    return bounds


def _value_bound(node: fx.Node, graph: Graph) -> int | None:
    """What every user of a value allows; None if one of them is not known to look up."""
    bounds = [_argument_bound(user, node, graph) for user in node.users if user in graph.call_set]
    known = [bound for bound in bounds if bound is not None]
    return min(known) if known and len(known) == len(bounds) else None


def _argument_bound(user: fx.Node, argument: fx.Node, graph: Graph) -> int | None:
    """What one call allows of an argument."""
    name = str(getattr(user.target, "_opname", ""))
    if name in _SAME_VALUES:
        return _value_bound(user, graph)
    table = user.args[0] if user.args else None
    if not isinstance(table, fx.Node) or table not in graph.specs:
        return None
    shape = graph.specs[table].shape
    if name == "embedding" and user.args[1] is argument:
        return shape[0]
    if name in ("cross_entropy_loss", "nll_loss", "nll_loss_nd") and user.args[1] is argument:
        return shape[min(1, len(shape) - 1)]
    if name in ("gather", "index_select") and bind(user).get("index") is argument:
        return shape[int(str(bind(user)["dim"]))]
    return None
