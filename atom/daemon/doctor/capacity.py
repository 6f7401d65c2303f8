"""What models fit this box, by the planner's own arithmetic: no weights, no measurement."""

from pathlib import Path

import torch

from atom.base.errors import DeviceError
from atom.base.units import format_bytes
from atom.config.load import parse_run_text
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.daemon.doctor.facts import Fit
from atom.daemon.fitting.box_plan import disk_plan
from atom.daemon.fitting.device_choice import (
    BOUNDARY_SHARE,
    free_host_bytes,
    most_micro_batches,
    peer_bytes,
    question,
    usable_device_bytes,
)
from atom.daemon.model.model_source import open_source
from atom.daemon.model.recipe import trace_run
from atom.graph.ir import ParameterLayout
from atom.graph.profile.assumed import typical_graph
from atom.graph.profile.seconds import LinkRates, Spread
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT2_VOCABULARY, SIZES, GPT3Config, parameter_shapes

_FAMILY_RUN = """
[run]
name = "doctor"
[model]
family = "gpt3"
size = "{size}"
precision = "{precision}"
vocabulary_size = {vocabulary}
[data]
source = "python-stdlib"
[batch]
global_sequences = 8
micro_batch_sequences = 1
[optimizer]
learning_rate = 1e-4
state = "{state}"
[snapshot]
every_rounds = 2
"""
_ANY_RATE = Spread.exactly(1e10)
"""Whether a model fits does not depend on how fast its bytes move."""


def precision_for(gpu_computes_bfloat16: bool | None) -> tuple[str, str]:
    """(precision, state) that train the largest models without loss; None: there is no GPU."""
    if gpu_computes_bfloat16 is None:
        return "float32", "exact"
    return ("bfloat16", "split") if gpu_computes_bfloat16 else ("float16", "exact")


def largest_of_family(
    peer: PeerFile, device: torch.device, precision: str, state: str, folder: Path
) -> tuple[Fit | None, Fit | None]:
    """(the largest that fits memory, the next larger one). Raises: ConfigError, ModelError."""
    larger: Fit | None = None
    for size in reversed(SIZES):
        run = parse_run_text(
            _FAMILY_RUN.format(
                size=size, precision=precision, vocabulary=GPT2_VOCABULARY, state=state
            )
        )
        config = GPT3Config.build(vocabulary_size=GPT2_VOCABULARY, size=size)
        need_bytes = peer_bytes(run, ParameterLayout.of(parameter_shapes(config)))
        title = f"gpt3 {size} in {precision}" + ("" if state == "exact" else f', state = "{state}"')
        have_bytes = free_host_bytes(peer.host.memory_bytes)
        if need_bytes > have_bytes:  # no need to trace what cannot be
            larger = Fit(title, need_bytes, have_bytes, 0, 0)
            continue
        fit = fit_of(run, title, peer, device, folder)
        if fit.fits_memory:
            return fit, larger
        larger = fit
    return None, larger


def fit_of(run: RunFile, title: str, peer: PeerFile, device: torch.device, folder: Path) -> Fit:
    """Of a (pinned) run whose model is no code of its owner's; `folder`: its state directory.
    Raises: ConfigError, ModelError."""
    graph = trace_run(run, open_source(run, None))
    have_bytes, need_bytes = free_host_bytes(peer.host.memory_bytes), peer_bytes(run, graph.layout)
    disk = disk_plan(run, graph, peer, folder)
    return Fit(
        title,
        need_bytes,
        have_bytes,
        disk.total_bytes,
        disk.have_bytes,
        _device_problem(run, graph, peer, device, have_bytes - need_bytes),
    )


def _device_problem(
    run: RunFile, graph: Graph, peer: PeerFile, device: torch.device, left_bytes: int
) -> str:
    """What fits the device in no way; empty if all does."""
    if left_bytes <= 0:
        return ""  # the host's memory decides
    budget = peer.device.memory_bytes or usable_device_bytes(device, left_bytes)
    profile = typical_graph(graph, device, LinkRates(_ANY_RATE, _ANY_RATE))
    on_gpu = device.type == "cuda"
    asked = question(
        graph, profile, budget, most_micro_batches(run), on_gpu, int(left_bytes * BOUNDARY_SHARE)
    )
    try:
        asked.answer()
    except DeviceError as problem:
        if on_gpu or peer.device.memory_bytes is not None:
            return problem.message
        # A CPU's device memory is no memory of its own: its owner knows of none.
        left = format_bytes(budget)
        return f"beside its state, {left} of host memory are too little to compute in"
    return ""
