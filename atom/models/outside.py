"""How a model lies in a folder that other programs read: names, forms, what goes with the weights.

Inside, a parameter has one name and lies in a flat arena. Outside, in a folder as `transformers`
writes it, the same numbers may have another name, or be transposed, and a tied parameter may be
written under one of its names or under all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


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
    """A model's folder."""

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
