"""Where a model comes from, behind one face: a family of ours, a Hugging Face config, own code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Batch = dict[str, Tensor]
"""One micro-batch: what the model's forward takes by name, first dimension = sequences."""
InitialValue = Callable[[str, tuple[int, ...]], Tensor]
"""(parameter's first name, shape) → its first value: a float32 CPU tensor of that shape."""

Answer = Callable[[Tensor, Tensor], Tensor]
"""(tokens int64 [1, tokens], last int64 [1]) → logits [1, vocabulary] of the token that follows the
one at the place `last`. Those behind it change nothing."""


class SourceError(ValueError):
    """A model, or its data, that cannot be had: what is wrong, where, and what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class DataError(SourceError):
    """Data that cannot be used."""


class DataUnreachable(DataError):
    """Data that cannot be had now, and perhaps later."""


class NoRoomForData(DataUnreachable):
    """A copy that has to be made of them found no room on the disk."""


@dataclass(frozen=True)
class Place:
    """One tensor of a folder."""

    name: str
    parameter: str
    """The first of its names in the model: that in the layout."""
    shape: tuple[int, ...]
    """In the folder."""
    transposed: bool = False

    def from_parameter(self, value: Tensor) -> Tensor:
        """A parameter's value as the folder has it."""
        return value.t() if self.transposed else value

    to_parameter = from_parameter
    """The way back is the same."""


@dataclass(frozen=True)
class Outside:
    """How a model lies in a folder that other programs read, as `transformers` writes it.

    Inside, a parameter has one name and lies in a flat arena. In a folder the same numbers may have
    another name, or be transposed, and a tied parameter may be written under one of its names or
    under all of them.
    """

    places: tuple[Place, ...]
    """What is written."""
    config: Mapping[str, Any] | None
    """The config.json; None: no other program can build the model."""
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    """Written too; no training changes them."""
    aliases: tuple[Place, ...] = ()
    """Not written, but may be found: further names of tied parameters."""
    prefix: str = ""
    """"transformer.": some folders leave it out of the names."""
    ignored: Callable[[str], bool] = lambda name: False
    """May a tensor be found that the model does not have? Constants of older versions."""
    converted: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None
    """All that is to be written → what is really written, where that is no matter of names."""
    loaded: Callable[[str], dict[str, Tensor]] | None = None
    """The way back, where `converted` is one: a folder → all parameters and buffers, float32."""


class ModelSource(Protocol):
    """Builds one run's model. Equal sources give equal models on every machine."""

    name: str
    """What people call it: "gpt3", "LlamaForCausalLM", "my.module:factory"."""
    packages: tuple[tuple[str, str], ...] = ()
    """(package, version) of the libraries that decide the model, besides PyTorch."""
    vocabulary_size: int | None = None
    """Tokens it can embed; None: not known here."""
    values_in_threads: bool = False
    """May several threads ask for initial values at once? Not where modules initialise themselves
    from PyTorch's one state of random numbers."""

    def build(self, dtype: torch.dtype) -> nn.Module:
        """The model with parameters of `dtype` on `meta` and buffers with their values.

        `forward(**batch)` returns the mean loss of the micro-batch. Raises: SourceError.
        """

    def example_batch(self, sequences: int) -> Batch:
        """Names, shapes and dtypes of a micro-batch, on `meta`. Raises: SourceError."""

    def text_batch(self, text: Batch) -> Batch:
        """A micro-batch as the forward takes it, of `text` with `tokens` and `targets`, both int64
        [sequences, tokens]: targets are the next tokens.

        A source that was told to expect them is given `target_share` [sequences], of each one's
        text, and `positions`, as `tokens`: in the document.
        """
        assert text.keys() == {"tokens", "targets"}
        return text

    def next_logits(self, model: nn.Module) -> Answer:
        """What `model`, of `build`, says beside its loss. Raises: SourceError if it says nothing
        else."""
        raise SourceError(
            f"{self.name} gives no logits to sample from",
            "give the module a method logits(tokens): [sequences, tokens, vocabulary]",
        )

    def checked_batch(self, batch: Batch) -> Batch:
        """A batch as the check at start-up runs it: with whatever a batch may hold."""
        return batch

    def initial_values(self, seed: int) -> InitialValue:
        """Round 0 under `seed`: the same values on every peer, whatever the count of threads.

        Raises (the call, or the values): SourceError.
        """

    def beginning(self, given: InitialValue, seed: int) -> InitialValue:
        """Round 0 with values `given` for all that lies in a folder."""
        return given

    def outside(self, dtype: torch.dtype) -> Outside:
        """How the model lies in a folder for other programs. Raises: SourceError."""

    def added(self, name: str, value_of: Callable[[str], Tensor]) -> Tensor | None:
        """What else is part of a parameter in a folder. `value_of`: the run's parameters, float32.
        None: nothing."""
        return None

    def require_config(self, text: str) -> None:
        """Whether a folder's config.json describes this model. Raises: SourceError naming what
        differs."""
        return

    def shrunk(self) -> "ModelSource":
        """A smaller model of the same make, for a check against eager; itself if it has none."""
        return self

    def inspect(self, seed: int) -> None:
        """Looks at what only values show, on the model with those of `seed`. For small models.

        Raises: SourceError.
        """
        return


def meta_tokens(sequences: int, sequence_tokens: int) -> Tensor:
    """Tokens of an example batch."""
    return torch.zeros((sequences, sequence_tokens), dtype=torch.int64, device="meta")


def refuse_difference(key: str, found: Any, wanted: Any) -> None:
    """Of a folder's config. Raises: SourceError if the two values of `key` are not equal."""
    if found != wanted:
        raise SourceError(
            f"the folder's model has {key} = {found!r}, the run's {wanted!r}",
            'change the run file, or set [model] huggingface = "FOLDER/config.json"',
        )


def materialised(source: ModelSource, dtype: torch.dtype, seed: int) -> nn.Module:
    """The model with its first values, rounded to `dtype`, on the CPU. Raises: SourceError."""
    model = source.build(dtype)
    value_of = source.initial_values(seed)
    made: dict[int, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters()):
        value = value_of(name, tuple(parameter.shape)).to(dtype)
        made[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
    for module in model.modules():
        for key, old in module._parameters.items():
            if old is not None:
                module._parameters[key] = made[id(old)]
    return model


def outside_of(model: nn.Module, tied: frozenset[str] = frozenset()) -> Outside:
    """The names that the model itself gives, without a config. `tied`: names that whoever reads the
    folder fills in itself.
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
