"""Model, micro-batches and optimizer that all sides train alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atom.models.gpt3 import GPT3Config
from benchmarks.shared.batches import random_batches

TINY = GPT3Config(layers=4, heads=4, model_dim=128, sequence_tokens=128, vocabulary_size=256)
VOCABULARY = 50304
"""GPT-2's vocabulary, rounded up to a multiple of 128 for matrix units."""
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SEED, LEARNING_RATE, CLIP_NORM = 1, 1e-4, 1.0
BETAS, EPSILON, WEIGHT_DECAY = (0.9, 0.95), 1e-8, 0.1
ADAMW: dict[str, Any] = {
    "lr": LEARNING_RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": WEIGHT_DECAY
}  # fmt: skip
"""Settings of PyTorch's AdamW."""

MicroBatches = Sequence[dict[str, Tensor]]


class SideMissing(Exception):
    """A side that cannot run here: a package or the memory for it is absent."""


@dataclass(frozen=True)
class Setup:
    """Order to the process of one side. Equal setups may share a process."""

    side: str
    """Name in `sides.SIDES`."""
    size: str
    """"tiny", or a size of GPT-3."""
    sequences: int
    """Sequences in each micro-batch."""
    precision: str
    device: str
    """"cpu" or "cuda"."""
    micro_batches: int = 1
    """Most micro-batches in one pass. This and all fields below: Atom's side only."""
    gpu_bytes: int | None = None
    """Cap of the allocator. None: no cap, one layer per sub-model."""
    layout: str = "exact"
    """Form of the states on the host: see `atom.swap.state_form`."""
    gradients: str = "float32"
    """Dtype of gradients on the device-to-host copy and in the host sum."""
    host_bytes: int | None = None
    """Memory of the host. None: as the system reports it."""
    trained: float | None = None
    """Share of the layers trained on the device. None: none, or as planned."""

    @property
    def config(self) -> GPT3Config:
        if self.size == "tiny":
            return TINY
        return GPT3Config.build(size=self.size, vocabulary_size=VOCABULARY)

    @property
    def dtype(self) -> torch.dtype:
        return PRECISIONS[self.precision]

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda", 0) if self.device == "cuda" else torch.device("cpu")

    def batches(self, micro_batches: int, step: int) -> list[dict[str, Tensor]]:
        """Return random tokens of one step, the same on every side."""
        shape = self.sequences, self.config.sequence_tokens
        return random_batches(micro_batches, self.config.vocabulary_size, shape, SEED + step)
