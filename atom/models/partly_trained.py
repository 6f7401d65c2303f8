"""Models of which only adapters on their linear layers are trained.

An adapter (LoRA: Hu et al. 2021, arXiv 2106.09685) adds to the output of a linear layer for x

    B · A · dropout(x) · alpha / rank

with A [rank, inputs] and B [outputs, rank]. The layer itself is frozen. Names, initial values and
the order of operations are as in the `peft` library, so results are equal in every bit.
"""

import fnmatch
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from atom.models.source import Answer, Batch, InitialValue, ModelSource, Outside, Place, SourceError

DOWN, UP = "lora_A", "lora_B"
"""Names of an adapter's matrices A and B as submodules of the layer, as in `peft`."""
_SHOWN = 8


@dataclass(frozen=True)
class Adapters:
    """Training of low-rank adapters on linear layers."""

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    """Names of layers, or their ends, with wildcards: "q_proj", "layers.1?.mlp.*"; empty: all."""

    def choose(self, model: nn.Module) -> None:
        """Freeze all parameters of the model and add the adapters.

        Raises:
            SourceError: a target matches no linear layer.
        """
        model.requires_grad_(False)
        chosen = self._chosen(dict(_linear_layers(model)))
        for layer in chosen.values():
            _add_adapter(layer, self)

    def shrunk(self) -> "Adapters":
        """Return the counterpart for a shrunk model, which may lack the targets' numbered layers.

        Only the last component of each target is kept.
        """
        return replace(self, targets=tuple(name.rpartition(".")[2] for name in self.targets))

    def _chosen(self, layers: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        found = dict[str, nn.Module]()
        for target in self.targets or ("*",):
            named = {
                n: layer for n, layer in layers.items() if fnmatch.fnmatch(f".{n}", f"*.{target}")
            }
            if not named:
                ends = sorted({name.rpartition(".")[2] for name in layers})[:_SHOWN]
                raise SourceError(
                    f"[train] targets: {target!r} names none of the model's linear layers",
                    f"they end with {', '.join(ends)}" if ends else "the model has none",
                )
            found.update(named)
        return found

    @property
    def scale(self) -> float:
        """Factor by which an adapter's output is multiplied."""
        return self.alpha / self.rank

    def peft_config(self, layers: list[str], transposed: bool) -> dict[str, Any]:
        """Return the adapter_config.json with which `peft` adds the adapters.

        Args:
            layers: names of the adapted layers in the exported model.
            transposed: True if the weight of any layer is [inputs, outputs].
        """
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "target_modules": sorted(layers),
            "fan_in_fan_out": transposed,
            "bias": "none",
            "inference_mode": True,
        }


class PartlyTrained(ModelSource):
    """`ModelSource` of another source's model with adapters, which alone are trained."""

    def __init__(self, whole: ModelSource, part: Adapters) -> None:
        self.whole, self.part = whole, part
        self.name, self.packages = whole.name, whole.packages
        self.vocabulary_size = whole.vocabulary_size
        self.values_in_threads = whole.values_in_threads

    def build(self, dtype: torch.dtype) -> nn.Module:
        model = self.whole.build(dtype)
        self.part.choose(model)
        return model

    def example_batch(self, sequences: int) -> Batch:
        return self.whole.example_batch(sequences)

    def text_batch(self, text: Batch) -> Batch:
        return self.whole.text_batch(text)

    def next_logits(self, model: nn.Module) -> Answer:
        return self.whole.next_logits(model)

    def checked_batch(self, batch: Batch) -> Batch:
        return self.whole.checked_batch(batch)

    def initial_values(self, seed: int) -> InitialValue:
        return self.beginning(self.whole.initial_values(seed), seed)

    def beginning(self, given: InitialValue, seed: int) -> InitialValue:
        def value_of(name: str, shape: tuple[int, ...]) -> Tensor:
            return _first_value(name, shape, seed) if _is_added(name) else given(name, shape)

        return value_of

    def outside(self, dtype: torch.dtype) -> Outside:
        """Return the folder format of the whole model, whose weights include the adapters."""
        return self.whole.outside(dtype)

    def added(self, name: str, value_of: Callable[[str], Tensor]) -> Tensor | None:
        layer = name.removesuffix(".weight")
        if layer == name or layer not in self.adapted:
            return None
        down, up = (value_of(f"{layer}.{each}.weight") for each in (DOWN, UP))
        added = (up @ down) * self.part.scale
        return added.t() if self.adapted[layer] else added

    def adapter(self) -> tuple[tuple[Place, ...], dict[str, Any]]:
        """Return the contents of a `peft` folder with the adapters only.

        Returns:
            The places of the tensors in adapter_model.safetensors, and the adapter_config.json.
        """
        model, places, layers = self.build(torch.float32), list[Place](), dict[str, bool]()
        of_base = {place.parameter: place for place in self.outside(torch.float32).places}
        for layer, is_transposed in self.adapted.items():
            base = of_base[f"{layer}.weight"]
            outside = base.name.removesuffix(".weight")
            layers[outside] = base.transposed or is_transposed
            for each in (DOWN, UP):
                own = f"{layer}.{each}.weight"
                shape = tuple(model.get_parameter(own).shape)
                places.append(Place(f"base_model.model.{outside}.{each}.weight", own, shape))
        return tuple(places), self.part.peft_config(list(layers), any(layers.values()))

    @cached_property
    def adapted(self) -> Mapping[str, bool]:
        """Name of each layer with an adapter → True if its weight is [inputs, outputs]."""
        layers = self.build(torch.float32).named_modules()
        return {name: _is_transposed(layer) for name, layer in layers if hasattr(layer, DOWN)}

    def require_config(self, text: str) -> None:
        self.whole.require_config(text)

    def shrunk(self) -> ModelSource:
        whole = self.whole.shrunk()
        return self if whole is self.whole else PartlyTrained(whole, self.part.shrunk())

    def inspect(self, seed: int) -> None:
        self.whole.inspect(seed)


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, layer) for the linear layers that can have an adapter.

    They lie in a numbered module, which excludes the head, and do not share their weight.
    Subclasses of nn.Linear are left out, because they may use the weight differently.
    """
    users = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for name, module in model.named_modules():
        linear = type(module) is nn.Linear or _is_transposed(module)
        if linear and any(map(str.isdigit, name.split("."))) and users[id(module.weight)] == 1:
            yield name, module


def _is_transposed(module: nn.Module) -> bool:
    """Return True for GPT-2's linear layer in `transformers`, whose weight is [inputs, outputs]."""
    return any(kind.__name__ == "Conv1D" for kind in type(module).mro()) and hasattr(module, "nf")


def _add_adapter(layer: Any, adapters: Adapters) -> None:
    """Add an adapter by changing the layer's class, so that its parameters keep their names."""
    outputs, inputs = layer.weight.shape[::-1] if _is_transposed(layer) else layer.weight.shape
    form = {"bias": False, "device": "meta", "dtype": layer.weight.dtype}
    setattr(layer, DOWN, nn.Linear(inputs, adapters.rank, **form))
    setattr(layer, UP, nn.Linear(adapters.rank, outputs, **form))
    layer.lora_dropout = nn.Dropout(adapters.dropout) if adapters.dropout else nn.Identity()
    layer.lora_scale = adapters.scale
    layer.__class__ = _with_adapter(type(layer))


def _with_adapter(parent: Any) -> type:
    def forward(self: Any, x: Tensor) -> Any:
        result: Tensor = parent.forward(self, x)
        return result + self.lora_B(self.lora_A(self.lora_dropout(x))) * self.lora_scale

    names = {"forward": forward, "__module__": parent.__module__}
    return type(parent.__name__, (parent,), names)


def _is_added(name: str) -> bool:
    return name.endswith((f".{DOWN}.weight", f".{UP}.weight"))


def _first_value(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return the initial value of A or B [shape], float32.

    B is zero, so that the adapter has no effect at first. A is drawn as for a PyTorch linear layer.
    """
    if name.endswith(f".{UP}.weight"):
        return torch.zeros(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))
    bound = 1 / math.sqrt(shape[1])
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
