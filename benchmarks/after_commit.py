"""From a commit to the next round: the optimizer's step between the rounds, or under the passes.

Both sides are one replica of the same GPT-3, in turn, on the CPU: it takes the step, its state is
hashed, a pass is made. What counts is when the next round's first forward begins, when its pass has
ended, and when the state's digest is known (before that, no ring can begin).

    python benchmarks/after_commit.py
    python benchmarks/after_commit.py --layers 24 --model-dim 1024 --sequence-tokens 256
"""

import argparse
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from planned import layer_ends
from sides import Timing, machine, positive, publish, ratio
from torch import Tensor

from atom.base.clock import BootClock
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.clipping import gradient_norm
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice
from atom.swap.schedule import Forward
from atom.swap.timeline import Recording
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica, ReplicaSettings

SEED, HEADS, VOCABULARY = 1, 8, 8192
FIGURES = ("first forward", "pass ended", "digest known")
Seconds = tuple[float, float, float]
"""After the commit: per figure."""


def main() -> None:
    options = _options()
    config = GPT3Config(
        options.layers, HEADS, options.model_dim, options.sequence_tokens, VOCABULARY
    )
    with_device = CpuDevice()
    try:
        round_ = Round(config, options.micro_batches, with_device)
        sides: list[Callable[[], Seconds]] = [round_.step_between, round_.step_under]
        measured: list[list[Seconds]] = [[], []]
        for run in range(options.runs + 1):
            for side in (0, 1) if run % 2 else (1, 0):
                seconds = sides[side]()
                if run:  # the first one warms up
                    measured[side].append(seconds)
    finally:
        with_device.close()
    _publish(round_, measured)


class Round:
    """A replica with the gradients of a round, again and again."""

    def __init__(
        self, config: GPT3Config, micro_batches: int, device: CpuDevice, layers: int = 1
    ) -> None:
        """`layers`: of a sub-model."""
        generator = torch.Generator().manual_seed(SEED)
        shape = (1, config.sequence_tokens)
        self.batches = [
            {
                name: torch.randint(config.vocabulary_size, shape, generator=generator)
                for name in ("tokens", "targets")
            }
            for _ in range(micro_batches)
        ]
        graph = trace(GPT3(config, device="meta"), self.batches[0])
        last, ends = layer_ends(graph)[-1], layer_ends(graph)[layers - 1 : -1 : layers]
        self.program = build_program(graph, ends=(*ends, last))
        self.clock, self.recording = BootClock(), Recording()
        rate = RateSettings(1e-4, 1e-4, 0, "constant", None)
        settings = ReplicaSettings(rate, clip_norm=1.0)
        self.replica = Replica(self.program, None, settings, device, self.clock, self.recording)
        self.replica.initialise(functools.partial(initial_value, config, seed=SEED))
        self.result = torch.zeros(self.program.layout.total_elements)
        self.replica.run_pass(self.batches)

    def step_between(self) -> Seconds:
        mean, norm = self._commit()
        began = self.clock.now()
        self.replica.begin_step(mean, norm, self.replica.round + 1)
        self.replica.finish_step()
        hashed = self._hash()
        return self._pass(began, lambda: hashed)

    def step_under(self) -> Seconds:
        mean, norm = self._commit()
        began = self.clock.now()
        self.replica.begin_step(mean, norm, self.replica.round + 1)
        with ThreadPoolExecutor(1) as background:
            return self._pass(began, background.submit(self._hash).result)

    def _commit(self) -> tuple[Tensor, float]:
        mean = torch.div(self.replica.gradient_sums(), self.replica.sequences, out=self.result)
        return mean, gradient_norm(mean)

    def _hash(self) -> float:
        state_digest(self.replica.state_arenas())
        return self.clock.now()

    def _pass(self, began: float, hashed: Callable[[], float]) -> Seconds:
        self.recording.spans.clear()
        self.replica.reset_gradients()
        self.replica.run_pass(self.batches)
        ended = self.clock.now()
        forward = min(s.start_s for s in self.recording.spans if s.event == Forward(0, 0))
        return forward - began, ended - began, hashed() - began


def _publish(round_: Round, measured: list[list[Seconds]]) -> None:
    between, under = (
        {
            figure: Timing(column)
            for figure, column in zip(FIGURES, zip(*runs, strict=True), strict=True)
        }
        for runs in measured
    )
    ratios = {figure: ratio(under[figure], between[figure]) for figure in FIGURES}
    body = {
        "benchmark": "after_commit",
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "parameters": sum(spec.numel for spec in round_.program.layout.specs),
        "sub_models": len(round_.program.sub_models),
        "between": {figure: between[figure].to_json() for figure in FIGURES},
        "under": {figure: under[figure].to_json() for figure in FIGURES},
        "ratio": ratios,
    }
    rows = [
        [f, f"{between[f].median_s:.4f}", f"{under[f].median_s:.4f}", f"{ratios[f]:.2f}"]
        for f in FIGURES
    ]
    publish(["seconds after the commit", "step between", "step under", "ratio"], rows, body)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=positive, default=6)
    parser.add_argument("--model-dim", type=positive, default=256)
    parser.add_argument("--sequence-tokens", type=positive, default=64)
    parser.add_argument("--micro-batches", type=positive, default=2)
    parser.add_argument("--runs", type=positive, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
