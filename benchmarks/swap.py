"""What swapping costs: a pass and a step through sub-models, beside the whole module in memory.

Both sides train the same GPT-3 on the same micro-batches in the same process, in turn. The plain
side is PyTorch as one would write it: the whole module on the device in the computing precision,
gradients accumulated there, clipping, fused AdamW on those same parameters. The swapped side keeps
float32 masters, moments and gradients on the host and takes its step there, so in half precision
it does more than the plain side. With a budget, the planner decides the cut and what stays on the
device, from a profile measured first, and how many micro-batches go through it in one pass: "pass"
is then all passes of a step. Needs torch alone.

    python benchmarks/swap.py
    python benchmarks/swap.py --device cuda --size 2.7b --budget "10 GiB"
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from planned import Planner
from sides import Timing, machine, publish, ratio
from torch import Tensor

from atom.base.errors import UserError
from atom.base.units import parse_bytes
from atom.graph.ir import Program
from atom.graph.profile import measure_graph
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT3, SIZES, GPT3Config, initial_value, initialise
from atom.optim.adamw import AdamWSettings
from atom.optim.clipping import gradient_norm
from atom.optim.rate import RateSettings
from atom.plan.choice import Choice
from atom.plan.chosen_program import chosen_program
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice, Device
from atom.training.replica import Replica, ReplicaSettings

TINY = GPT3Config(layers=4, heads=4, model_dim=128, sequence_tokens=128, vocabulary_size=256)
PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SEED, LEARNING_RATE, CLIP_NORM = 1, 1e-4, 1.0
BETAS, EPSILON, WEIGHT_DECAY = (0.9, 0.95), 1e-8, 0.1

MicroBatches = Sequence[dict[str, Tensor]]
Measured = tuple[float, float, float]
"""Seconds of the pass, seconds of the step, mean loss before the step."""


def main() -> None:
    options = _options()
    config = _config(options)
    precision = PRECISIONS[options.precision]
    batches = _batches(config, options)
    device = _device(options.device, precision)
    try:
        graph = trace(GPT3(config, device="meta", dtype=precision), batches[0])
        choice = _choice(graph, device.torch_device, options)
        program = build_program(graph) if choice is None else chosen_program(graph, choice)
        swapped = Swapped(program, config, choice, device)
        plain = Plain(config, precision, device.torch_device)
        measured = _in_turn([swapped.step, plain.step], batches, options.runs)
    finally:
        device.close()
    _publish(options, config, program, choice, measured)


class Swapped:
    """The model through sub-models: atom's own replica."""

    def __init__(
        self, program: Program, config: GPT3Config, choice: Choice | None, device: Device
    ) -> None:
        rate = RateSettings(LEARNING_RATE, LEARNING_RATE, 0, "constant", None)
        adamw = AdamWSettings(BETAS, EPSILON, WEIGHT_DECAY)
        precision = program.parameter_dtype
        arrangement = Arrangement() if choice is None else choice.arrangement
        self.micro_batches = None if choice is None else choice.micro_batches
        settings = ReplicaSettings(rate, adamw, CLIP_NORM, precision, arrangement)
        self.replica = Replica(program, None, settings, device)
        self.replica.initialise(functools.partial(initial_value, config, seed=SEED))
        self.device = device.torch_device

    def step(self, batches: MicroBatches) -> Measured:
        replica = self.replica
        replica.reset_gradients()
        started = _now(self.device)
        at_once = self.micro_batches or len(batches)
        for first in range(0, len(batches), at_once):
            replica.run_pass(batches[first : first + at_once])
        between = _now(self.device)
        loss = replica.loss_sum / replica.sequences
        mean = replica.gradients.div_(replica.sequences)
        replica.apply(mean, gradient_norm(mean), replica.round + 1)
        return between - started, _now(self.device) - between, loss


class Plain:
    """The whole module on the device, as the PyTorch tutorials have it."""

    def __init__(self, config: GPT3Config, precision: torch.dtype, device: torch.device) -> None:
        self.model = GPT3(config, device=device, dtype=precision)
        initialise(self.model, SEED)
        self.device = device
        decayed = [p for p in self.model.parameters() if p.dim() >= 2]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        groups: list[dict[str, Any]] = [
            {"params": decayed},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, fused=True
        )

    def step(self, batches: MicroBatches) -> Measured:
        self.optimizer.zero_grad()
        started = _now(self.device)
        losses = []
        for batch in batches:
            loss = self.model(**{name: value.to(self.device) for name, value in batch.items()})
            (loss / len(batches)).backward()
            losses.append(loss.detach())
        mean_loss = torch.stack(losses).mean().item()
        between = _now(self.device)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        return between - started, _now(self.device) - between, mean_loss


def _in_turn(
    sides: Sequence[Callable[[MicroBatches], Measured]], batches: MicroBatches, runs: int
) -> list[list[Measured]]:
    """Per side its runs. The first round warms up and is dropped; who begins alternates."""
    measured: list[list[Measured]] = [[] for _ in sides]
    for run in range(runs + 1):
        order = range(len(sides)) if run % 2 else reversed(range(len(sides)))
        for side in order:
            result = sides[side](batches)
            if run:
                measured[side].append(result)
    return measured


def _publish(
    options: argparse.Namespace,
    config: GPT3Config,
    program: Program,
    choice: Choice | None,
    measured: Sequence[Sequence[Measured]],
) -> None:
    parts = ("pass", "step", "both")
    timings = [
        {
            "pass": Timing(tuple(p for p, _, _ in side)),
            "step": Timing(tuple(s for _, s, _ in side)),
            "both": Timing(tuple(p + s for p, s, _ in side)),
        }
        for side in measured
    ]
    ours, theirs = timings
    tokens = options.micro_batches * options.sequences * config.sequence_tokens
    rows = [
        [part, f"{ours[part].median_s:.4f}", f"{theirs[part].median_s:.4f}",
         f"{ratio(ours[part], theirs[part]):.2f}"]
        for part in parts
    ]  # fmt: skip
    body = {
        "benchmark": "swap",
        "machine": machine(),
        "device": options.device,
        "size": options.size,
        "precision": options.precision,
        "parameters": sum(spec.numel for spec in program.layout.specs),
        "sub_models": len(program.sub_models),
        "planned": None if choice is None else _planned(choice, options, ours["pass"]),
        "tokens_per_pass": tokens,
        "swapped": {part: ours[part].to_json() for part in parts},
        "plain": {part: theirs[part].to_json() for part in parts},
        "ratio": {part: ratio(ours[part], theirs[part]) for part in parts},
        "tokens_per_s": {
            "swapped": tokens / ours["both"].median_s,
            "plain": tokens / theirs["both"].median_s,
        },
        "loss_of_first_run": {"swapped": measured[0][0][2], "plain": measured[1][0][2]},
    }
    publish(["seconds (median)", "swapped", "plain", "ratio"], rows, body)


def _config(options: argparse.Namespace) -> GPT3Config:
    if options.size == "tiny":
        return TINY
    return GPT3Config.build(
        size=options.size,
        sequence_tokens=options.sequence_tokens,
        vocabulary_size=SIZES[options.size].vocabulary_size,
    )


def _batches(config: GPT3Config, options: argparse.Namespace) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(SEED)
    shape = (options.sequences, config.sequence_tokens)
    return [
        {
            name: torch.randint(config.vocabulary_size, shape, generator=generator)
            for name in ("tokens", "targets")
        }
        for _ in range(options.micro_batches)
    ]


def _choice(graph: Graph, device: torch.device, options: argparse.Namespace) -> Choice | None:
    """The planner's, if there is a budget. Raises: DeviceError."""
    if options.budget is None:
        return None
    planner = Planner(graph, device, options.micro_batches)
    return planner.choose(measure_graph(graph, device), parse_bytes(options.budget))


def _planned(choice: Choice, options: argparse.Namespace, measured: Timing) -> dict[str, Any]:
    """Foretold as if nothing were loaded when a pass begins, as after a step."""
    foretold_s = choice.seconds_per_micro_batch * options.micro_batches
    return {
        "micro_batches_per_pass": choice.micro_batches,
        "resident": sorted(choice.arrangement.resident),
        "kept": sorted(choice.arrangement.kept),
        "device_bytes": choice.memory.total_bytes,
        "utilisation": choice.timeline.utilisation,
        "foretold_s": foretold_s,
        "foretold_to_measured": foretold_s / measured.median_s,
    }


def _device(name: str, precision: torch.dtype) -> Device:
    if name == "cpu":
        return CpuDevice()
    from atom.swap.streams import CudaDevice

    return CudaDevice(0, precision)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", choices=["tiny", *SIZES], default="tiny")
    parser.add_argument("--precision", choices=PRECISIONS, help="float32 on cpu, else bfloat16")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=2, help="in each micro-batch")
    parser.add_argument("--sequence-tokens", type=int, help="the model's own unless given")
    parser.add_argument("--budget", help='"10 GiB" for the plan; without: one layer per sub-model')
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    if options.precision is None:
        options.precision = "float32" if options.device == "cpu" else "bfloat16"
    return options


if __name__ == "__main__":
    try:
        main()
    except UserError as problem:
        sys.exit(f"error: {problem.message}\nhint:  {problem.hint}")
