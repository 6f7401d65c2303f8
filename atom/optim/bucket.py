"""Device memory for a part of the arenas while the device takes the optimizer's step on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from atom.optim.fused_multiply_add import Memory
from atom.swap.host_store import HostStore, working_copy_bytes
from atom.swap.state_form import StateForm

WORKING, GRADIENT = "working", "gradient"


@dataclass(frozen=True)
class Scalars:
    """What one step multiplies by, each a float32: as the host kernel is given them."""

    coefficient: float
    beta2: float
    mean_weight: float
    """1 - β₁, or where that is a half or more, that less 1: see `moves_far`."""
    one_minus_beta2: float
    root_of_correction2: float
    epsilon: float
    minus_step_size: float
    decay: float
    """Of the weights of this piece."""


@dataclass(frozen=True)
class Bucket:
    """One piece's gradient, state and working copy, flat [elements] each, and its scalars."""

    arenas: Mapping[str, Tensor]
    """By the names of the store's state, `WORKING` if it has a rounded copy, and `GRADIENT`."""
    numbers: Tensor
    """[8] float32: `Scalars` in the order of its fields."""

    @classmethod
    def allocate(
        cls, elements: int, precision: torch.dtype, form: StateForm, memory: Memory
    ) -> "Bucket":
        kept = dict(form.arenas())
        if working_copy_bytes(precision, form):
            kept[WORKING] = precision
        kept[GRADIENT] = torch.float32
        arenas = {name: memory(elements, dtype) for name, dtype in kept.items()}
        return cls(arenas, memory(len(Scalars.__dataclass_fields__), torch.float32))

    @cached_property
    def scalars(self) -> Mapping[str, Tensor]:
        """Views without dimensions. On the device: a kernel that is given a number of Python's to
        divide by may multiply by its reciprocal instead."""
        return dict(zip(Scalars.__dataclass_fields__, self.numbers.unbind(), strict=True))

    def gradient(self, dtype: torch.dtype, elements: int) -> Tensor:
        """Where a gradient of that type comes to lie: the beginning of `GRADIENT`."""
        return self.arenas[GRADIENT].view(dtype)[:elements]

    @property
    def written(self) -> Sequence[str]:
        """The arenas that a step changes."""
        return [name for name in self.arenas if name != GRADIENT]

    @property
    def read(self) -> Sequence[str]:
        """The arenas that a step starts from, beside the gradient: a rounded copy is only made."""
        return [name for name in self.arenas if name not in (WORKING, GRADIENT)]


def host_arenas(store: HostStore, gradient: Tensor) -> Mapping[str, Tensor]:
    """What a bucket's arenas are parts of."""
    return {**store.state, WORKING: store.working, GRADIENT: gradient}


def bytes_in(form: StateForm) -> int:
    """Per element, from the host: state and gradient."""
    return form.element_bytes + torch.float32.itemsize


def bytes_out(precision: torch.dtype, form: StateForm) -> int:
    """Per element, to the host: state and rounded copy."""
    return form.element_bytes + working_copy_bytes(precision, form)


def bucket_bytes(elements: int, precision: torch.dtype, form: StateForm) -> int:
    """What `allocate` takes, but for a few bytes."""
    return elements * (bytes_out(precision, form) + torch.float32.itemsize)
