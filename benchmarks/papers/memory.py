"""Row `memory`: device memory of each side, and the models that a card of 8 GB takes."""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from atom.base.errors import DeviceError
from atom.graph.costs.seconds import assume_graph
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.rate import RateSettings
from atom.plan.choosing import enough_bytes
from atom.plan.memory import Piece, pieces_of
from atom.training.replica.replica import Replica, ReplicaSettings
from benchmarks.papers.result import MEGABYTE, Result, result
from benchmarks.shared.device_memory import CountingDevice, peak_bytes
from benchmarks.shared.planner import Planner, graph_of, layer_ends, profile_of
from benchmarks.swap.in_memory import BYTES_PER_PARAMETER, Recomputed

GB = 10**9
SIZES, NODES = ("small", "xl", "2.7b", "6.7b", "13b", "175b"), (2, 4, 8)
CARD_BYTES = 7 << 30
"""Memory of a card of 8 GB without the share of PyTorch and the driver."""
SMALL = GPT3Config(8, 4, 256, sequence_tokens=128, vocabulary_size=2048)
FLOAT32_BYTES_PER_PARAMETER = 16
PAPER = "a bucket instead of the state: 4 x less (AxoNN); one sub-model at a time (Atom)"


def memory(_: argparse.Namespace) -> list[Result]:
    """Measure tables II and III of Atom: memory of each side, and models on a card of 8 GB."""
    return [*map(_estimated, SIZES), *_held()]


def stage_bytes(pieces: Sequence[Piece], in_flight: int, parameter_bytes: int) -> int:
    """Return the device memory of a pipeline's stage; the whole model is one stage, one in flight.

    The memory holds all bytes per parameter, the values between layers of every micro-batch in
    flight, and the activations of one layer that is recomputed in the backward.
    """
    parameters = {name: n for piece in pieces for name, n in piece.parameters.items()}
    between = in_flight * sum(piece.out_bytes for piece in pieces)
    at_work = max(piece.activation_bytes for piece in pieces)
    return parameter_bytes * sum(parameters.values()) + between + at_work


def largest_stage_bytes(pieces: Sequence[Piece], nodes: int) -> int:
    """Return the memory of the largest stage under 1F1B, where stage n holds nodes - n batches."""
    ends = [len(pieces) * n // nodes for n in range(nodes + 1)]
    return max(
        stage_bytes(pieces[begin:end], nodes - n, BYTES_PER_PARAMETER)
        for n, (begin, end) in enumerate(pairwise(ends))
    )


def _estimated(size: str) -> Result:
    """Compute a model's memory; a micro-batch is one sequence of 2,048 tokens in bfloat16."""
    graph, profile = graph_of(size), profile_of(size, "rtx3060-12g")
    pieces = pieces_of(profile.chain, layer_ends(graph))
    held = [largest_stage_bytes(pieces, nodes) / GB for nodes in (1, *NODES)]
    planner = Planner(graph, torch.device("cuda"), micro_batches=1)
    least, fits = enough_bytes(planner.question(profile, CARD_BYTES)) / GB, "no plan"
    with contextlib.suppress(DeviceError):
        fits = f"{len(planner.choose(profile, CARD_BYTES).cut.pieces)} sub-models"
    words = ", ".join(f"{each:,.3g}" for each in held)
    case = f"GPT-3 {size}: GB whole; a stage of 2, 4, 8 nodes; Atom at the least; on 8 GB"
    return result(case, f"{words}; {least:.2g}; {fits}", PAPER, held_gb=held, least_gb=least)


def _held() -> Iterator[Result]:
    """Yield the memory of a small model on the CPU twin, in float32: estimated and allocated."""
    layers, batch = (
        2,
        {name: torch.zeros(1, 128, dtype=torch.int64) for name in ("tokens", "targets")},
    )
    graph = trace(GPT3(SMALL, device="meta"), batch)
    profile = assume_graph(graph, "rtx3060-12g")
    pieces = pieces_of(profile.chain, layer_ends(graph))
    planner = Planner(graph, torch.device("cpu"), micro_batches=1)
    choice = planner.choose(profile, planner.budgets(profile)["swapped"])
    with contextlib.closing(CountingDevice()) as device:
        rate = RateSettings(1e-4, 1e-4, 0, "constant", None)
        settings = ReplicaSettings(rate=rate, arrangement=choice.arrangement, micro_batches=1)
        replica = Replica(choice.program(graph), None, settings, device)
        replica.initialise(partial(initial_value, SMALL, seed=1))
        atom = device.slot_bytes + peak_bytes(lambda: replica.run_pass([batch]))
    whole, stage = partial(_train_whole, batch), partial(_train_stage, layers, 4)
    estimate = partial(stage_bytes, parameter_bytes=FLOAT32_BYTES_PER_PARAMETER)
    for name, estimated, held in (
        ("whole", estimate(pieces, 1), peak_bytes(whole)),
        ("2 of 10 layers, 4 in flight", estimate(pieces[1 : 1 + layers], 4), peak_bytes(stage)),
        ("Atom", choice.memory.total_bytes, atom),
    ):
        case = f"{graph.layout.total_elements:,} parameters, CPU twin, {name}: MB estimated, held"
        yield result(case, f"{estimated / MEGABYTE:.1f}, {held / MEGABYTE:.1f}")


def _train_whole(batch: dict[str, Tensor]) -> None:
    model = GPT3(SMALL)
    for number, block in enumerate(model.blocks):
        model.blocks[number] = Recomputed(block)
    _train(model, lambda: [model(**batch)], [None])


def _train_stage(layers: int, in_flight: int) -> None:
    stage = nn.Sequential(*(Recomputed(block) for block in GPT3(SMALL).blocks[:layers]))
    came = torch.zeros(1, SMALL.sequence_tokens, SMALL.model_dim, requires_grad=True)
    forward = lambda: [stage(came) for _ in range(in_flight)]  # noqa: E731 - as in the whole model
    _train(stage, forward, [torch.zeros_like(came)] * in_flight)


def _train(model: nn.Module, forward: Callable[[], list[Tensor]], gradients: list[Any]) -> None:
    """Take two steps: an optimizer makes its state in the first one."""
    adamw = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        for made, gradient in zip(forward(), gradients, strict=True):
            made.backward(gradient)
        adamw.step()
        adamw.zero_grad(set_to_none=False)
