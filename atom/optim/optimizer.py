"""The optimizer's contract: what it keeps for each parameter, and how one step changes it. See
"Adding an optimizer" in docs/contributor.md."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout, ParameterSpec
from atom.optim.gradients import FlatNumbers
from atom.swap.device_state import DeviceState
from atom.swap.host_store import (
    HostStore,
    beside_bytes,
    state_arenas,
    store_weights,
    weights_of,
)
from atom.swap.state_form import StateArena, StateForm

STATE_DTYPES = torch.float32, torch.bfloat16, torch.float16, torch.uint8
"""In which an optimizer may keep state: digests, snapshots and transfers know these."""
PIECE_ELEMENTS = 2**20  # of a stretch: about a millisecond's work, which threads share evenly


@dataclass(frozen=True)
class StateTensor:
    """A tensor that an optimizer keeps for one parameter. It begins as zeros."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    """One of `STATE_DTYPES`."""
    block: int = 1
    """So many of the parameter's elements, in order, share one of its elements: a power of two."""


@dataclass(frozen=True)
class StepTerms:
    """What is the same for all parameters in one step."""

    number: int
    """Counts from 1: the round that the step leads to."""
    learning_rate: float
    coefficient: float = 1.0
    """Of the gradient: clipping, and the division of a sum."""

    def clipped(self, gradient: Tensor) -> Tensor:
        """`gradient` times the coefficient: float32, new memory."""
        return gradient.float() * self.coefficient


@dataclass(frozen=True)
class Part:
    """What one update works on: a parameter, or a stretch of one if the optimizer is element-wise.

    All tensors are views of the replica's arenas in the parameter's shape, but flat in a stretch;
    the optimizer's own tensors have the shapes that it declared.
    """

    parameter: ParameterSpec
    start: int
    stop: int
    """Its elements' numbers in the arenas of weights and gradients: [start, stop)."""
    state: Mapping[str, Tensor]
    """The optimizer's tensors for it, by the names declared: to be changed in place."""
    stored: Mapping[str, Tensor]
    """`HostStore.stored_weights`, for kernels. Others use `weights`."""

    @contextmanager
    def weights(self) -> Iterator[Tensor]:
        """The master weights, float32, to be changed in place within the `with` block; at its end
        they are stored, and rounded to what the device loads."""
        value = weights_of(self.stored)
        yield value
        store_weights(self.stored, value)

    def of(self, gradients: FlatNumbers) -> Tensor:
        """Its part of the gradients."""
        part = gradients[self.start : self.stop]
        whole = self.stop - self.start == self.parameter.numel
        return part.view(self.parameter.shape) if whole else part


class Optimizer(ABC):
    """The rule by which a step changes weights. One for a replica; keeps no tensors itself.

    The result must depend on the arguments alone, bit for bit, on every machine: replicas that
    step differently are no replicas. One that cannot promise this says so.
    """

    elementwise: ClassVar[bool] = False
    """No element's update depends on another's, and all state has the parameter's shape, or one
    element for each block of the parameter's, in order: then large parameters are updated in
    stretches of whole blocks, on several threads. Otherwise whole parameters are updated one after
    the other."""

    reproducible: ClassVar[bool] = True
    """The same bits on every machine. Others go with update rules whose steps are a peer's own."""

    @abstractmethod
    def state(self, parameter: ParameterSpec, form: StateForm) -> Mapping[str, StateTensor]:
        """What is kept for this parameter, by name: lowercase words, in the same order always.

        Raises: ValueError if the state has no such form.
        """

    @property
    def steps_on_devices(self) -> bool:
        """Can `update` be given parts whose tensors, with the gradient, are on a device? Whole
        parameters then; on a GPU, with `device_kernels`, on the current stream."""
        return False

    def products(self, parameter: ParameterSpec) -> float:
        """Multiplications and additions in products of matrices that an update of this parameter
        takes, beside what it does with each element."""
        return 0.0

    @abstractmethod
    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        """Takes the step of one part: changes `part.state` and `part.weights()` in place.

        `gradient`: of the part's shape, float32 or bfloat16, not to be changed, before clipping:
        see `step.clipped`. Parts are updated in any order and, if element-wise, on several threads.
        What this raises leaves the replica without a state.
        """


def optimizer_state(
    optimizer: Optimizer, layout: ParameterLayout, form: StateForm
) -> dict[str, StateArena]:
    """All trained parameters' states as arenas.

    Raises: ValueError if a name has tensors of two types, or a type is none of `STATE_DTYPES`.
    """
    shapes = dict[str, dict[str, tuple[int, ...]]]()
    dtypes = dict[str, torch.dtype]()
    for spec in layout.trained:
        for name, tensor in optimizer.state(spec, form).items():
            if dtypes.setdefault(name, tensor.dtype) != tensor.dtype:
                raise ValueError(f"the optimizer's {name} is {dtypes[name]} and {tensor.dtype}")
            if tensor.dtype not in STATE_DTYPES:
                raise ValueError(f"the optimizer's {name} is {tensor.dtype}, which no state may be")
            shapes.setdefault(name, {})[spec.name] = tensor.shape
    return {name: StateArena(dtypes[name], ParameterLayout.of(shapes[name])) for name in shapes}


def store_bytes(
    optimizer: Optimizer,
    layout: ParameterLayout,
    precision: torch.dtype,
    form: StateForm = StateForm.EXACT,
    gradients: torch.dtype = torch.float32,
) -> int:
    """What `HostStore.allocate` takes with this optimizer's state."""
    arenas = state_arenas(layout, form, optimizer_state(optimizer, layout, form))
    state_bytes = sum(arena.size_bytes for arena in arenas.values())
    sums_bytes = layout.trained_elements * gradients.itemsize
    return state_bytes + sums_bytes + beside_bytes(layout, precision, form)


def parts_of(optimizer: Optimizer, store: HostStore) -> list[Part]:
    """All but the frozen parameters, in the order of the store's layout."""
    return [part for spec in store.layout.trained for part in _parts(optimizer, store, spec)]


def _parts(optimizer: Optimizer, store: HostStore, spec: ParameterSpec) -> Iterator[Part]:
    declared = optimizer.state(spec, store.form)
    state = {
        name: store.arenas[name].layout.view(store.state[name], spec.name) for name in declared
    }
    stored = store.stored_weights(spec.name)
    whole = Part(spec, spec.offset, spec.offset + spec.numel, state, stored)
    on_device = store.on_device is not None and spec.name in store.on_device.names
    if not optimizer.elementwise or spec.numel <= PIECE_ELEMENTS or on_device:
        yield whole
        return
    yield from stretches(whole, PIECE_ELEMENTS, {name: declared[name].block for name in declared})


def device_parts(parts: Iterable[Part], on_device: DeviceState) -> dict[str, Part]:
    """By parameter, those of the parts that live on the device: their tensors there."""

    def views(part: Part, host: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: on_device.state[name].view(part.parameter.name) for name in host}

    return {
        part.parameter.name: replace(
            part, state=views(part, part.state), stored=views(part, part.stored)
        )
        for part in parts
        if part.parameter.name in on_device.names
    }


def without_state(part: Part) -> Iterator[Part]:
    """The part, or if it is large its stretches, for what is done to weights alone."""
    bare = replace(part, state={})
    if part.stop - part.start <= PIECE_ELEMENTS:
        yield bare
    else:
        yield from stretches(bare, PIECE_ELEMENTS, {})


def stretches(whole: Part, elements: int, blocks: Mapping[str, int]) -> Iterator[Part]:
    """A whole parameter as flat stretches of so many `elements`; the last may be shorter.

    `blocks`: `StateTensor.block` by name. `elements` are a multiple of each.
    """
    numel = whole.parameter.numel
    for start in range(0, numel, elements):
        stop = min(start + elements, numel)
        state = {
            name: _stretch(tensor, blocks[name], start, stop)
            for name, tensor in whole.state.items()
        }
        stored = {name: _stretch(tensor, 1, start, stop) for name, tensor in whole.stored.items()}
        yield Part(whole.parameter, whole.start + start, whole.start + stop, state, stored)


def _stretch(tensor: Tensor, block: int, start: int, stop: int) -> Tensor:
    """What belongs to a parameter's elements [start, stop), of a tensor with one for each block."""
    assert start % block == 0, "stretches are whole blocks"
    return tensor.view(-1)[start // block : -(-stop // block)]
