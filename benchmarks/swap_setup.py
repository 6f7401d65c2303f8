"""What a side is asked to train: model, micro-batches, optimizer. The same for every side."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from atom.models.gpt3 import GPT3Config

TINY = GPT3Config(layers=4, heads=4, model_dim=128, sequence_tokens=128, vocabulary_size=256)
VOCABULARY = 50304
"""GPT-2's, rounded up to a multiple of 128: what matrix units like."""
PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SEED, LEARNING_RATE, CLIP_NORM = 1, 1e-4, 1.0
BETAS, EPSILON, WEIGHT_DECAY = (0.9, 0.95), 1e-8, 0.1

MicroBatches = Sequence[dict[str, Tensor]]


class SideMissing(Exception):
    """This side cannot run here, and why: a package is absent, or the memory it needs."""


@dataclass(frozen=True)
class Setup:
    """One side of a comparison, as its process is told. Equal setups may share a process."""

    side: str
    """A name in `swap_sides.SIDES`."""
    size: str
    """"tiny", or one of the paper's."""
    sequences: int
    """In each micro-batch."""
    precision: str
    device: str
    """"cpu" or "cuda"."""
    micro_batches: int = 1
    """The most in one pass (Atom's own side; the others know no passes)."""
    gpu_bytes: int | None = None
    """Cap of the allocator (Atom's own side). None: no cap, one layer per sub-model."""
    layout: str = "exact"
    """A form of the states on the host (Atom's own side): see `atom.swap.state_form`."""
    gradients: str = "float32"
    """In which numbers they leave the device and are summed (Atom's own side)."""
    host_bytes: int | None = None
    """What the host has (Atom's own side). None: as it says itself."""
    trained: float | None = None
    """Share of the layers trained on the device (Atom's own side). None: none, or as planned."""

    @classmethod
    def from_json(cls, text: str) -> "Setup":
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

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
        """Random tokens of one step, the same on every side."""
        config, generator = self.config, torch.Generator().manual_seed(SEED + step)
        shape = (self.sequences, config.sequence_tokens)
        return [
            {
                name: torch.randint(config.vocabulary_size, shape, generator=generator)
                for name in ("tokens", "targets")
            }
            for _ in range(micro_batches)
        ]
