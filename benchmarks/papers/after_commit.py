"""One replica from a commit to the next round's pass: its step before the pass, or under it.

Both ways use the same replica of GPT-3, in turn, on the CPU: it takes the step, its state is
hashed, a pass is made.
"""

import functools
from concurrent.futures import ThreadPoolExecutor

import torch
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
from benchmarks.shared.batches import random_batches
from benchmarks.shared.planner import layer_ends

SEED = 1


class Round:
    """Replica that commits the gradients of its last pass, round after round."""

    def __init__(
        self, config: GPT3Config, micro_batches: int, device: CpuDevice, layers: int = 1
    ) -> None:
        """Build the replica; a sub-model has `layers` layers."""
        shape = 1, config.sequence_tokens
        self.batches = random_batches(micro_batches, config.vocabulary_size, shape, SEED)
        graph = trace(GPT3(config, device="meta"), self.batches[0])
        last, ends = layer_ends(graph)[-1], layer_ends(graph)[layers - 1 : -1 : layers]
        self.program = build_program(graph, ends=(*ends, last))
        self.clock, self.recording = BootClock(), Recording()
        rate = RateSettings(1e-4, 1e-4, 0, "constant", None)
        settings = ReplicaSettings(rate=rate, clip_norm=1.0)
        self.replica = Replica(self.program, None, settings, device, self.clock, self.recording)
        self.replica.initialise(functools.partial(initial_value, config, seed=SEED))
        self.result = torch.zeros(self.program.layout.total_elements)
        self.replica.run_pass(self.batches)

    def step_between(self) -> float:
        """Step, then make a pass; return seconds from the commit to the first forward."""
        mean, norm = self._commit()
        began = self.clock.now()
        self.replica.begin_step(mean, norm, self.replica.step_count + 1)
        self.replica.finish_step()
        state_digest(self.replica.state_arenas())
        return self._first_forward() - began

    def step_under(self) -> float:
        """Step and hash under a pass; return seconds from the commit to the first forward."""
        mean, norm = self._commit()
        began = self.clock.now()
        self.replica.begin_step(mean, norm, self.replica.step_count + 1)
        with ThreadPoolExecutor(1) as background:
            background.submit(lambda: state_digest(self.replica.state_arenas()))
            return self._first_forward() - began

    def _commit(self) -> tuple[Tensor, float]:
        mean = torch.div(self.replica.gradient_sums(), self.replica.sequences, out=self.result)
        return mean, gradient_norm(mean)

    def _first_forward(self) -> float:
        self.recording.spans.clear()
        self.replica.reset_gradients()
        self.replica.run_pass(self.batches)
        return min(s.start_s for s in self.recording.spans if s.event == Forward(0, 0))
