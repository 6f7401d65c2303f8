"""Models of several kinds to plan for: broad and deep stacks, skips, one of `transformers`.

Each has a size for a CPU and one for a GPU. On `meta`: tracing reads no weight.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from atom.models.gpt3 import GPT3, GPT3Config
from benchmarks.shared.batches import random_batches

Batch = dict[str, Tensor]
SEED = 1


@dataclass(frozen=True)
class Model:
    """Module whose forward gives the loss, and its micro-batches."""

    module: nn.Module
    micro_batch: Callable[[int], Batch]
    """Make a micro-batch from its number."""


def build(name: str, on_gpu: bool, dtype: torch.dtype) -> Model:
    """Build a model on `meta`.

    Raises:
        ImportError: `llama` without `transformers`.
    """
    return MODELS[name](on_gpu, dtype)


class Skips(nn.Module):
    """Linear layers; each of the second half adds the output of its mirror image in the first."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        made: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            if index >= len(self.layers) // 2 and made:
                x = x + made.pop()
            else:
                made.append(x)
            x = functional.gelu(layer(x))
        return (x - y).float().square().mean()


def _gpt3(
    cpu: GPT3Config, gpu: GPT3Config, cpu_sequences: int, gpu_sequences: int
) -> Callable[[bool, torch.dtype], Model]:
    def make(on_gpu: bool, dtype: torch.dtype) -> Model:
        config = gpu if on_gpu else cpu
        shape = (gpu_sequences if on_gpu else cpu_sequences, config.sequence_tokens)
        module = GPT3(config, device="meta", dtype=dtype)
        return _of_tokens(module, ("tokens", "targets"), config.vocabulary_size, shape)

    return make


def _skips(on_gpu: bool, dtype: torch.dtype) -> Model:
    layers, width, rows = (16, 8192, 4096) if on_gpu else (12, 1024, 128)
    with torch.device("meta"):
        module = Skips(layers, width).to(dtype)

    def micro_batch(number: int) -> Batch:
        generator = torch.Generator().manual_seed(SEED + number)
        return {name: torch.randn(rows, width, generator=generator).to(dtype) for name in "xy"}

    return Model(module, micro_batch)


def _llama(on_gpu: bool, dtype: torch.dtype) -> Model:
    from atom.models.huggingface import HuggingFaceSource

    width, layers, vocabulary = (4096, 16, 32000) if on_gpu else (384, 6, 4096)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": width,
        "intermediate_size": width * 11 // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 128,
        "vocab_size": vocabulary,
    }
    shape = (2, 2048) if on_gpu else (2, 128)
    model = HuggingFaceSource(config, shape[1]).build(dtype)
    return _of_tokens(model, ("input_ids", "labels"), vocabulary, shape)


def _of_tokens(
    module: nn.Module, names: tuple[str, str], vocabulary: int, shape: tuple[int, int]
) -> Model:
    def micro_batch(number: int) -> Batch:
        return random_batches(1, vocabulary, shape, SEED + number, names)[0]

    return Model(module, micro_batch)


MODELS: dict[str, Callable[[bool, torch.dtype], Model]] = {
    "gpt3": _gpt3(GPT3Config(6, 6, 384, 128, 4096), GPT3Config(24, 16, 2048, 2048, 50304), 2, 2),
    "wide": _gpt3(GPT3Config(2, 8, 1024, 128, 1024), GPT3Config(4, 40, 5120, 2048, 50304), 1, 2),
    "deep": _gpt3(GPT3Config(24, 4, 128, 128, 512), GPT3Config(96, 16, 1024, 1024, 50304), 4, 4),
    "skips": _skips,
    "llama": _llama,
    "tiny": _gpt3(GPT3Config(3, 2, 32, 16, 64), GPT3Config(3, 2, 128, 64, 64), 2, 2),
}
