"""Measurements kept on disk: one small JSON file per graph and device.

A file is only ever a saving of time: one that cannot be read as a measurement of this graph is
measured anew, and whoever asked is told.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import torch

from atom.graph.chain import Machine, Seconds
from atom.graph.layers import layers_of
from atom.graph.profile.measured import device_name
from atom.graph.profile.seconds import Profile, measured_graph
from atom.graph.traced import Graph

_FORMAT = 5

Measurement = tuple[tuple[Seconds, ...], Machine]
"""Seconds per layer, and the link."""


def kept_profile(
    directory: Path, graph: Graph, device: torch.device, measure: Callable[[], Measurement]
) -> tuple[Profile, str]:
    """From the kept measurement, or a new one that is kept from now on; and what there is to say.

    The note is empty when all is well, and also when there was no file; it says so if the new one
    cannot be kept.

    Raises: whatever `measure` raises.
    """
    name = device_name(device)
    path, note = directory / file_name(graph, device, name), ""
    try:
        layers, link = _read(path, len(layers_of(graph)))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
        if not isinstance(problem, FileNotFoundError):
            note = f"the kept profile {path} cannot be used ({problem}): measured anew"
        layers, link = measure()
        try:
            _write(path, layers, link)
        except OSError as failure:
            note = f"the profile cannot be kept in {directory}: {failure.strerror}"
    return measured_graph(graph, device, name, layers, link), note


def file_name(graph: Graph, device: torch.device, name: str) -> str:
    """Of all that a measurement depends on. The graph's hash has its shapes and precision."""
    key = [_FORMAT, graph.graph_hash, device.type, name, torch.__version__, torch.get_num_threads()]
    return f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.json"


def _read(path: Path, layers: int) -> Measurement:
    """Raises: what Python raises for content that `_write` does not write."""
    content = json.loads(path.read_bytes())
    seconds = [(float(forward), float(backward)) for forward, backward in content["layers"]]
    load, gradients = map(float, content["link"])
    numbers = [load, gradients, *(number for each in seconds for number in each)]
    if not (min(load, gradients) > 0 and all(0 <= number < math.inf for number in numbers)):
        raise ValueError("a rate or a time that cannot be")
    if len(seconds) != layers:
        raise ValueError("it is of another model")
    return tuple(Seconds(*each) for each in seconds), Machine(load, gradients)


def _write(path: Path, layers: tuple[Seconds, ...], link: Machine) -> None:
    content = {
        "layers": [(each.forward_s, each.backward_s) for each in layers],
        "link": (link.load_bytes_per_s, link.gradient_bytes_per_s),
    }
    text = json.dumps(content, allow_nan=False, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
