"""Models of which only adapters on their linear layers are trained.

An adapter (LoRA: Hu et al. 2021, arXiv 2106.09685) adds to the output of a linear layer for x

    B · A · dropout(x) · alpha / rank

with A [rank, inputs] and B [outputs, rank]. The layer itself is frozen. The weights of all experts
of a layer are one parameter [experts, …, …]: each expert has its own A and B, and their product is
added to its weight. Names, initial values and the order of operations are as in the `peft` library,
so results are equal in every bit.
"""

import fnmatch
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from atom.base.errors import ConfigError
from atom.models.gpt3 import generator_for
from atom.models.source import (
    Answer,
    Batch,
    Forward,
    InitialValue,
    ModelSource,
    Outside,
    Place,
    replace_forward,
)

DOWN, UP = "lora_A", "lora_B"
"""Names of an adapter's matrices A and B as submodules of the layer, as in `peft`."""
_OF_EXPERTS = "_adapter"
"""End of the name of a submodule that holds the adapters of a parameter of experts."""
_SHOWN = 8


@dataclass(frozen=True)
class Adapters:
    """Training of low-rank adapters on linear layers and on the weights of experts."""

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]
    """Names of layers, or their ends, with wildcards: "q_proj", "layers.1?.mlp.*"; empty: all.

    The weights of experts are named by their parameter: "experts.down_proj".
    """

    def choose(self, model: nn.Module, allowed: Mapping[str, nn.Module]) -> None:
        """Freeze all parameters of the model and add the adapters.

        Args:
            model: the model.
            allowed: the modules that may have adapters, by name.

        Raises:
            ConfigError: a target matches no linear layer, or experts are to have dropout.
        """
        model.requires_grad_(False)
        modules, named = set(allowed.values()), (*_linear_layers(model), *_experts(model))
        chosen = self._chosen({name: layer for name, layer in named if layer in modules})
        for name, layer in chosen.items():
            if "num_experts" not in vars(layer):
                _add_adapter(layer, self)
            elif not self.dropout:
                _add_to_experts(layer, name.rpartition(".")[2], self)
            else:
                raise ConfigError(
                    f"[train] dropout: the adapters of {name} allow none, as in peft",
                    "set it to 0, or name targets without experts",
                )

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
                raise ConfigError(
                    f"[train] targets: {target!r} names none of the layers that can have adapters",
                    f"they end with {', '.join(ends)}" if ends else "the model has none",
                )
            found.update(named)
        return found

    @property
    def scale(self) -> float:
        """Factor by which an adapter's output is multiplied."""
        return self.alpha / self.rank


class PartlyTrained(ModelSource):
    """`ModelSource` of another source's model with adapters, which alone are trained."""

    def __init__(self, whole: ModelSource, part: Adapters) -> None:
        self.whole, self.part = whole, part
        self.name, self.packages = whole.name, whole.packages
        self.vocabulary_size = whole.vocabulary_size
        self.values_in_threads = whole.values_in_threads

    def build(self, dtype: torch.dtype) -> nn.Module:
        model = self.whole.build(dtype)
        self.part.choose(model, self.whole.adaptable(model))
        return model

    def example_batch(self, sequences: int) -> Batch:
        return self.whole.example_batch(sequences)

    def text_batch(self, text: Batch) -> Batch:
        return self.whole.text_batch(text)

    def next_logits(self, model: nn.Module) -> Answer:
        return self.whole.next_logits(model)

    def initial_values(self, seed: int) -> InitialValue:
        return self.beginning(self.whole.initial_values(seed), seed)

    def beginning(self, given: InitialValue, seed: int) -> InitialValue:
        def value_of(name: str, shape: tuple[int, ...]) -> Tensor:
            added = name.endswith((f".{DOWN}.weight", f".{UP}.weight"))
            return _first_value(name, shape, seed) if added else given(name, shape)

        return value_of

    def outside(self, dtype: torch.dtype) -> Outside:
        """Return the folder format of the whole model, whose weights include the adapters."""
        return self.whole.outside(dtype)

    def added(self, name: str, value_of: Callable[[str], Tensor]) -> Tensor | None:
        if name not in self.adapted:
            return None
        own, module = self.adapted[name]
        down, up = (value_of(f"{own}.{each}.weight") for each in (DOWN, UP))
        if own.endswith(_OF_EXPERTS):
            up, down = _of_each_expert(module, down, up)
        added = (up @ down) * self.part.scale
        return added.t() if _is_transposed(module) else added

    def adapter(self) -> tuple[tuple[Place, ...], dict[str, Any]]:
        """Return the contents of a `peft` folder with the adapters only.

        Returns:
            The places of the tensors in adapter_model.safetensors, and the adapter_config.json.
        """
        model, outside = self.build(torch.float32), self.outside(torch.float32)
        places = list[Place]()
        of_base = {place.parameter: place for place in outside.places}
        layers, experts, transposed = list[str](), list[str](), False
        for weight, (own, module) in self.adapted.items():
            base = of_base[weight]
            there, _, key = base.name.rpartition(".")
            if own.endswith(_OF_EXPERTS):
                experts.append(base.name)
                # In peft, the adapters of a module's last parameter enclose those of the others.
                keys = _adapted_keys(module)
                there += ".base_layer" * (len(keys) - 1 - keys.index(key))
            else:
                layers.append(there)
                transposed |= base.transposed or _is_transposed(module)
            for each in (DOWN, UP):
                name = f"{own}.{each}.weight"
                shape = tuple(model.get_parameter(name).shape)
                places.append(Place(f"base_model.model.{there}.{each}.weight", name, shape))
        config = {
            "peft_type": "LORA",
            "r": self.part.rank,
            "lora_alpha": self.part.alpha,
            "lora_dropout": self.part.dropout,
            "target_modules": sorted(layers),
            "target_parameters": sorted(experts) or None,
            "fan_in_fan_out": transposed,
            "bias": "none",
            "inference_mode": True,
        }
        return tuple(places), config | dict(outside.peft)

    @cached_property
    def adapted(self) -> Mapping[str, tuple[str, nn.Module]]:
        """Name of each weight with an adapter → path of its A and B, and its module, on `meta`."""
        found = dict[str, tuple[str, nn.Module]]()
        for path, module in self.build(torch.float32).named_modules():
            if hasattr(module, "lora_scale"):
                found[f"{path}.weight"] = path, module
            for key in _adapted_keys(module):
                found[f"{path}.{key}"] = f"{path}.{key}{_OF_EXPERTS}", module
        return found

    def summary(self) -> str:
        """Return a line for the owner that tells which layers have adapters, and which stay frozen.

        Raises:
            ConfigError: the model cannot be built.
        """
        layers = _linear_layers(self.whole.build(torch.float32))
        frozen = [name for name, _ in layers if f"{name}.weight" not in self.adapted]
        experts = sum(own.endswith(_OF_EXPERTS) for own, _ in self.adapted.values())
        counts = f"{len(self.adapted) - experts} linear layers, {experts} weights of experts"
        rest = f"; {len(frozen)} linear layers have none, such as {frozen[0]}" if frozen else ""
        return f"adapters of {counts}{rest}"

    def require_config(self, text: str) -> None:
        self.whole.require_config(text)

    def shrunk(self) -> ModelSource:
        whole = self.whole.shrunk()
        return self if whole is self.whole else PartlyTrained(whole, self.part.shrunk())

    def inspect(self, seed: int) -> None:
        self.whole.inspect(seed)


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, layer) for the linear layers that can have an adapter.

    They are in a numbered module, which excludes the head, and do not share their weight.
    Subclasses of nn.Linear are left out, because they may use the weight differently.
    """
    users = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for name, module in model.named_modules():
        linear = type(module) is nn.Linear or _is_transposed(module)
        if linear and any(map(str.isdigit, name.split("."))) and users[id(module.weight)] == 1:
            yield name, module


def _experts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name of the parameter, module) for weights [experts, …, …] that can have adapters."""
    for name, parameter in model.named_parameters():
        module = model.get_submodule(name.rpartition(".")[0])
        if parameter.dim() == 3 and vars(module).get("num_experts") == len(parameter) > 1:
            yield name, module


def _is_transposed(module: nn.Module) -> bool:
    """Return True for GPT-2's linear layer in `transformers`, whose weight is [inputs, outputs]."""
    return any(kind.__name__ == "Conv1D" for kind in type(module).mro()) and hasattr(module, "nf")


def _add_adapter(layer: Any, adapters: Adapters) -> None:
    """Add an adapter by changing the layer's class, so that its parameters keep their names."""
    outputs, inputs = layer.weight.shape[::-1] if _is_transposed(layer) else layer.weight.shape
    _add_matrices(layer, inputs, outputs, adapters.rank, layer.weight.dtype)
    layer.lora_dropout = nn.Dropout(adapters.dropout) if adapters.dropout else nn.Identity()
    layer.lora_scale = adapters.scale
    replace_forward(layer, _with_adapter(type(layer).forward))


def _add_matrices(
    owner: nn.Module, inputs: int, outputs: int, rank: int, dtype: torch.dtype
) -> None:
    setattr(owner, DOWN, nn.Linear(inputs, rank, bias=False, device="meta", dtype=dtype))
    setattr(owner, UP, nn.Linear(rank, outputs, bias=False, device="meta", dtype=dtype))


def _add_to_experts(module: Any, key: str, adapters: Adapters) -> None:
    """Add adapters to a parameter of experts; the module keeps the names of its parameters."""
    weight = module.get_parameter(key)
    experts, *sides = weight.shape
    inputs, outputs = sides if getattr(module, "is_transposed", False) else sides[::-1]
    added = nn.Module()
    _add_matrices(added, inputs, outputs, adapters.rank * experts, weight.dtype)
    if not _adapted_keys(module):
        replace_forward(module, _with_adapted_experts(type(module).forward, adapters.scale))
    module.add_module(f"{key}{_OF_EXPERTS}", added)


def _adapted_keys(module: nn.Module) -> list[str]:
    """Return the names of a module's parameters that have adapters of experts, in their order."""
    return [key for key in module._parameters if f"{key}{_OF_EXPERTS}" in module._modules]


def _of_each_expert(module: nn.Module, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return two factors whose product is B · A of each expert, shaped like the weights.

    Args:
        module: the experts.
        down: A of all experts [experts · rank, inputs].
        up: B of all experts [outputs, rank · experts].
    """
    experts: Any = module.num_experts
    down = down.reshape(experts, -1, down.shape[-1])
    up = up.reshape(up.shape[0], -1, experts).permute(2, 0, 1)
    if getattr(module, "is_transposed", False):  # the weights are [experts, inputs, outputs]
        return down.transpose(-2, -1), up.transpose(-2, -1)
    return up, down


def _with_adapted_experts(plain: Forward, scale: float) -> Forward:
    def forward(self: Any, *given: Any, **named: Any) -> Any:
        changed = dict[str, Tensor]()
        for key in _adapted_keys(self):
            added = self.get_submodule(f"{key}{_OF_EXPERTS}")
            factors = _of_each_expert(self, added.lora_A.weight, added.lora_B.weight)
            changed[key] = torch.baddbmm(getattr(self, key), *factors, alpha=scale)
        vars(self).update(changed)  # hides the parameters, which the parent reads by name
        try:
            return plain(self, *given, **named)
        finally:
            for key in changed:
                del vars(self)[key]

    return forward


def _with_adapter(plain: Forward) -> Forward:
    def forward(self: Any, x: Tensor) -> Any:
        result: Tensor = plain(self, x)
        return result + self.lora_B(self.lora_A(self.lora_dropout(x))) * self.lora_scale

    return forward


def _first_value(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return the initial value of A or B [shape], float32.

    B is zero, so that the adapter has no effect at first. A is drawn as for a PyTorch linear layer.
    """
    if name.endswith(f".{UP}.weight"):
        return torch.zeros(shape)
    bound = 1 / math.sqrt(shape[1])
    return torch.empty(shape).uniform_(-bound, bound, generator=generator_for(name, seed))
