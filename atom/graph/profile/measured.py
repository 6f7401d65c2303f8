"""A graph's profile, measured: one layer at a time, so that no model is too large."""

import platform
from pathlib import Path

import torch

from atom.base.errors import DeviceError
from atom.graph.costs.operations import operation_costs
from atom.graph.profile.by_layer import layer_profiles, shared
from atom.graph.profile.index_bounds import index_bounds
from atom.graph.profile.rates import Stopwatch, measure_link, now
from atom.graph.profile.roofline import TYPICAL
from atom.graph.profile.seconds import LinkRates, Profile
from atom.graph.profile.sub_models import Told, profile
from atom.graph.program import build_program
from atom.graph.traced import Graph


def measure_graph(
    graph: Graph,
    device: torch.device | str,
    repeats: int = 5,
    link: LinkRates | None = None,
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
    costs = operation_costs(graph, fused=device.type == "cuda")
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
    return Profile(
        "measured",
        device_name(device),
        layer_profiles(graph, costs, timings, link),
        shared(graph, costs, timings, typical),
        link,
    )


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
