"""From the last gradient to the norm: what clipping lets a step wait for.

Both sides are one replica of the same GPT-3, in turn, on the CPU: a pass, then the gradient's norm.
*After* reads the whole arena when the pass is over. *As they land* sums each block when its last
gradient has landed, under the pass; what is left is the end. Both give the same bits, which is
checked each time.

    python benchmarks/gradient_norm.py
    python benchmarks/gradient_norm.py --layers 24 --model-dim 1536
"""

import argparse
import functools
import os
import statistics

import torch
from sides import Timing, machine, positive, publish, ratio

from atom.base.clock import BootClock
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.clipping import BLOCK_ELEMENTS
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice
from atom.training.replica.replica import Replica, ReplicaSettings

SEED, HEADS, VOCABULARY = 1, 8, 8192
AFTER, LANDING = "after the pass", "as they land"


def main() -> None:
    options = _options()
    config = GPT3Config(
        options.layers, HEADS, options.model_dim, options.sequence_tokens, VOCABULARY
    )
    device = CpuDevice()
    try:
        round_ = Round(config, device)
        measured: dict[str, list[tuple[float, float]]] = {AFTER: [], LANDING: []}
        for run in range(options.runs + 1):
            for side in (AFTER, LANDING) if run % 2 else (LANDING, AFTER):
                seconds = round_.seconds(last=side is LANDING)
                if run:  # the first one warms up
                    measured[side].append(seconds)
    finally:
        device.close()
    _publish(round_, measured)


class Round:
    """A replica that makes the same pass again and again."""

    def __init__(self, config: GPT3Config, device: CpuDevice) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self.batch = {
            name: torch.randint(
                config.vocabulary_size, (1, config.sequence_tokens), generator=generator
            )
            for name in ("tokens", "targets")
        }
        self.program = build_program(trace(GPT3(config, device="meta"), self.batch))
        settings = ReplicaSettings(RateSettings(1e-4), clip_norm=1.0)
        self.clock = BootClock()
        self.replica = Replica(self.program, None, settings, device, self.clock)
        values = functools.partial(initial_value, config, seed=SEED)
        self.replica.initialise(values, threads=len(os.sched_getaffinity(0)))
        self.norm: float | None = None

    @property
    def elements(self) -> int:
        return self.program.layout.total_elements

    def seconds(self, last: bool) -> tuple[float, float]:
        """Of the pass, and from its end until the norm is known."""
        began = self.clock.now()
        self.replica.reset_gradients()
        self.replica.run_pass([self.batch], last=last)
        ended = self.clock.now()
        norm = self.replica.gradient_norm()
        known = self.clock.now()
        assert self.norm in (None, norm), "the same pass, and another norm"
        self.norm = norm
        return ended - began, known - ended


def _publish(round_: Round, measured: dict[str, list[tuple[float, float]]]) -> None:
    exposed = {side: Timing(tuple(norm for _, norm in runs)) for side, runs in measured.items()}
    whole = {side: Timing(tuple(sum(both) for both in runs)) for side, runs in measured.items()}
    passes = {side: statistics.median(one for one, _ in runs) for side, runs in measured.items()}
    body = {
        "benchmark": "gradient_norm",
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "parameters": round_.elements,
        "blocks": -(-round_.elements // BLOCK_ELEMENTS),
        "exposed": {side: timing.to_json() for side, timing in exposed.items()},
        "pass_and_norm": {side: timing.to_json() for side, timing in whole.items()},
        "exposed_ratio": ratio(exposed[LANDING], exposed[AFTER]),
        "whole_ratio": ratio(whole[LANDING], whole[AFTER]),
    }
    rows = [
        [
            side,
            f"{passes[side]:.3f}",
            f"{exposed[side].median_s * 1e3:.1f}",
            f"{whole[side].median_s:.3f}",
            f"{ratio(exposed[side], exposed[AFTER]):.2f}",
        ]
        for side in measured
    ]
    publish(["norm", "pass, s", "norm exposed, ms", "both, s", "ratio, exposed"], rows, body)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=positive, default=12)
    parser.add_argument("--model-dim", type=positive, default=1536)
    parser.add_argument("--sequence-tokens", type=positive, default=64)
    parser.add_argument("--runs", type=positive, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
