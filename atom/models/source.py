"""Common interface of all model sources: built-in family, Hugging Face config, or own code."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from atom.base.errors import ConfigError

Batch = dict[str, Tensor]
"""Micro-batch: the arguments of the model's forward by name; the first dimension is sequences."""
InitialValue = Callable[[str, tuple[int, ...]], Tensor]
"""Function (a parameter's first name, shape) → its initial value, float32 on the CPU."""

Answer = Callable[[Tensor, Tensor], Tensor]
"""Function that returns the logits of one next token, without a loss.

(tokens int64 [1, tokens], last int64 [1]) → logits [1, vocabulary] of the token after the place
`last`. Tokens after that place do not affect the result.
"""


@dataclass(frozen=True)
class Place:
    """Tensor of a model folder, and the parameter that it holds."""

    name: str
    """Name of the tensor in the folder."""
    parameter: str
    """Name of the parameter in the layout, which is its first name in the model."""
    shape: tuple[int, ...]
    """Shape of the tensor in the folder."""
    transposed: bool = False
    """True if the folder stores the parameter transposed."""

    def from_parameter(self, value: Tensor) -> Tensor:
        """Return a parameter's value in the folder's orientation."""
        return value.t() if self.transposed else value

    to_parameter = from_parameter
    """Inverse of `from_parameter`: transposing twice changes nothing."""


@dataclass(frozen=True)
class Outside:
    """Folder format of a model, in which other programs read it, as `transformers` writes it.

    Within Atom, a parameter has one name and lies in a flat arena. In a folder the same numbers may
    have another name or be transposed, and a tied parameter may be written under one of its names
    or under all of them.
    """

    places: tuple[Place, ...]
    """Tensors that are written."""
    config: Mapping[str, Any] | None
    """Content of the config.json; None: no other program can build the model."""
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    """Name → buffer; buffers are written too, and training does not change them."""
    aliases: tuple[Place, ...] = ()
    """Further names of tied parameters, which are accepted in a folder but not written."""
    own_name: Callable[[str], str | None] = lambda name: name
    """Function (a folder's name of a tensor) → the place's name; None: `loaded` must read it."""
    ignored: Callable[[str], bool] = lambda name: False
    """Function that returns True for unknown tensors to ignore, such as old versions' constants."""
    written_names: Mapping[str, str] = field(default_factory=dict)
    """Place's name → name under which it is written, if these differ."""
    converted: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    """Conversion of all tensors before writing, for formats that differ by more than names."""
    loaded: Callable[[str, Mapping[str, Any] | None], dict[str, Tensor]] | None = None
    """Function (a folder, its quantization_config or None) → all parameters and buffers, float32.

    It reads formats that differ by more than names, all tensors at once.
    """
    peft: Mapping[str, Any] = field(default_factory=lambda: {"task_type": "CAUSAL_LM"})
    """Keys of an adapter_config.json by which `peft` finds the class of the model."""


class ModelSource(Protocol):
    """Interface that builds one run's model. Equal sources give equal models on every machine."""

    name: str
    """Name for people: "gpt3", "LlamaForCausalLM", "my.module:factory"."""
    packages: tuple[tuple[str, str], ...] = ()
    """(package, version) of the libraries besides PyTorch that affect the model."""
    vocabulary_size: int | None = None
    """Number of tokens that the model can embed; None: unknown."""
    values_in_threads: bool = False
    """True if several threads may request initial values at once.

    False for modules that initialise themselves, because they share PyTorch's random state.
    """

    def build(self, dtype: torch.dtype) -> nn.Module:
        """Return the model with parameters of `dtype` on `meta`, and buffers with their values.

        Its `forward(**batch)` returns the mean loss of the micro-batch, a scalar.

        Raises:
            ConfigError: the model cannot be built.
        """

    def example_batch(self, sequences: int) -> Batch:
        """Return names, shapes and dtypes of a micro-batch, on `meta`.

        Raises:
            ConfigError: the source cannot make a micro-batch.
        """

    def text_batch(self, text: Batch) -> Batch:
        """Return the arguments of the model's forward for a micro-batch of text.

        Args:
            text: `tokens` and `targets` (the next tokens), int64 [sequences, tokens]. A source that
                was created for them also gets `target_share`, float32 [sequences], and `positions`
                within the document, int64 [sequences, tokens].
        """
        assert text.keys() == {"tokens", "targets"}
        return text

    def next_logits(self, model: nn.Module) -> Answer:
        """Return the function that computes next-token logits with a model from `build`.

        Raises:
            ConfigError: the model gives no logits.
        """
        raise ConfigError(
            f"{self.name} gives no logits to sample from",
            "give the module a method logits(tokens) that returns [sequences, tokens, vocabulary]",
        )

    def adaptable(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return the modules of a model from `build` that may have adapters, by name."""
        return dict(model.named_modules())

    def initial_values(self, seed: int) -> InitialValue:
        """Return the function that computes the parameters of round 0.

        The values depend only on `seed`: all peers get the same, with any number of threads.

        Raises:
            ConfigError: a value cannot be computed. The call or the returned function raises it.
        """

    def beginning(self, given: InitialValue, seed: int) -> InitialValue:
        """Return the function that computes round 0's parameters, if the run starts from a folder.

        Args:
            given: function that returns the values of the folder.
            seed: seed of the parameters that no folder has, such as new adapters.
        """
        return given

    def outside(self, dtype: torch.dtype) -> Outside:
        """Return the folder format of the model for other programs.

        Args:
            dtype: dtype of the parameters of the described model.

        Raises:
            ConfigError: the model cannot be built.
        """

    def added(self, name: str, value_of: Callable[[str], Tensor]) -> Tensor | None:
        """Return the tensor that an export adds to a parameter, such as the product of an adapter.

        Args:
            name: name of a parameter in the exported folder.
            value_of: function that returns a parameter of the run by name, float32.

        Returns:
            A float32 tensor shaped like the parameter; None if there is nothing to add.
        """
        return None

    def require_config(self, text: str) -> None:
        """Check that a folder's config.json describes this model.

        Raises:
            ConfigError: the config differs; the message names the first difference.
        """
        return

    def shrunk(self) -> "ModelSource":
        """Return a source of a smaller model of the same kind, or itself if there is none.

        The smaller model is for comparing the compiled program with eager PyTorch.
        """
        return self

    def inspect(self, seed: int) -> None:
        """Check properties that only values reveal, on a small model initialised from `seed`.

        Raises:
            ConfigError: the model cannot be trained correctly.
        """
        return


def meta_tokens(sequences: int, sequence_tokens: int) -> Tensor:
    """Return the tokens of an example batch: int64 [sequences, sequence_tokens] on `meta`."""
    return torch.zeros((sequences, sequence_tokens), dtype=torch.int64, device="meta")


def refuse_difference(key: str, found: Any, wanted: Any) -> None:
    """Compare a key of a folder's config with the run's.

    Raises:
        ConfigError: the values differ.
    """
    if found != wanted:
        raise ConfigError(
            f"the folder's model has {key} = {found!r}, the run's {wanted!r}",
            'change the run file, or set [model] huggingface = "FOLDER/config.json"',
        )


def materialised(source: ModelSource, dtype: torch.dtype, seed: int) -> nn.Module:
    """Return the model with its initial values, rounded to `dtype`, on the CPU.

    Raises:
        ConfigError: the model cannot be built or initialised.
    """
    model, value_of = source.build(dtype), source.initial_values(seed)
    replace_parameters(
        model, lambda name, parameter: value_of(name, tuple(parameter.shape)).to(dtype)
    )
    return model


def replace_parameters(model: nn.Module, value: Callable[[str, nn.Parameter], Tensor]) -> None:
    """Replace every parameter by one with the value of a function; tied ones stay tied.

    Args:
        model: the model.
        value: function of a parameter's first name and the parameter.
    """
    new = {
        id(parameter): nn.Parameter(value(name, parameter), parameter.requires_grad)
        for name, parameter in model.named_parameters()
    }
    for module in model.modules():
        for key, old in module._parameters.items():
            if old is not None:
                module._parameters[key] = new[id(old)]


Forward = Callable[..., Any]
"""Function (module, the arguments of its forward) → the result."""


def replace_forward(module: nn.Module, forward: Forward, **more: Any) -> nn.Module:
    """Give a module another forward, and more attributes of its class; return the module.

    Only its class changes, to a subclass, so that parameters keep their names.
    """
    parent = type(module)
    names = {"forward": forward, "__module__": parent.__module__, **more}
    module.__class__ = type(parent.__name__, (parent,), names)
    return module


def outside_of(model: nn.Module, tied: frozenset[str] = frozenset()) -> Outside:
    """Return the folder format with the model's own names, without a config.

    Args:
        model: the model.
        tied: names of tied parameters that are not written, because readers of the folder restore
            them.
    """
    first: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    shapes = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        own = first.setdefault(id(parameter), name)
        names.setdefault(own, []).append(name)
        shapes[own] = tuple(parameter.shape)
    places, aliases = list[Place](), list[Place]()
    for own, all_names in names.items():
        written = [name for name in all_names if name not in tied] or all_names[:1]
        for name in all_names:
            (places if name in written else aliases).append(Place(name, own, shapes[own]))
    return Outside(tuple(places), None, _persistent_buffers(model), tuple(aliases))


def _persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict(keep_vars=True)
    return {name: buffer.detach() for name, buffer in model.named_buffers() if name in state}


# ---- commands that install missing packages into the running Python. They name its executable,
# because the user's shell may not have activated its environment.


def install_extra(extra: str) -> str:
    """Return the command that installs an extra of pyproject.toml, such as "hf"."""
    return install_package(f"atom-swarm[{extra}]")


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turn an ImportError within the context into a ConfigError: `what` needs the extra."""
    try:
        yield
    except ImportError as error:
        problem = f"{what} needs another package: {error}"
        raise ConfigError(problem, f"`{install_extra(extra)}`") from error


def install_package(wanted: str) -> str:
    """Return the command for a package, such as "torch>=2.9"."""
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", wanted])


def convert_weights(place: str) -> str:
    """Return the command that writes weights of another format as safetensors.

    Args:
        place: folder, or name on the hub.
    """
    code = (
        "from transformers import AutoModelForCausalLM as M; "
        f'M.from_pretrained({json.dumps(place)}, dtype="auto").save_pretrained("FOLDER")'
    )
    return shlex.join([sys.executable or "python3", "-c", code])


def install_version(package: str, version: str) -> str:
    """Return the command for exactly this version of a package."""
    return install_package(f"{package}=={version}")
