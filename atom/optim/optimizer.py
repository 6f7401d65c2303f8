"""Contract of an optimizer: the state of each parameter, and the change that one step makes.

See "Adding an optimizer" in docs/contributor.md.
"""

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
from atom.swap.host_store import HostStore, StateArena, StateForm, store_weights, weights_of

STATE_DTYPES = torch.float32, torch.bfloat16, torch.float16, torch.uint8
"""Dtypes of optimizer state that digests, snapshots and transfers support."""
PIECE_ELEMENTS = 2**20
"""Elements of a stretch: about a millisecond of work, so threads share a step evenly."""


@dataclass(frozen=True)
class StateTensor:
    """Declaration of a tensor that an optimizer keeps for one parameter; it starts as zeros."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    """Member of `STATE_DTYPES`."""
    block: int = 1
    """Number of consecutive parameter elements per element of the state: a power of two."""


@dataclass(frozen=True)
class StepTerms:
    """Numbers that all parameters of one step share."""

    number: int
    """Number of the step, from 1: the round that the step leads to."""
    learning_rate: float
    coefficient: float = 1.0
    """Factor of the gradient: clipping, and the division of a sum by its weight."""

    def clipped(self, gradient: Tensor) -> Tensor:
        """Return `gradient` times the coefficient, float32 in new memory."""
        return gradient.float() * self.coefficient


@dataclass(frozen=True)
class Part:
    """Unit of one update: a whole parameter, or a stretch of one if the optimizer is element-wise.

    All tensors are views of the replica's arenas. They have the parameter's shape, or are flat in a
    stretch; the optimizer's own tensors have the shapes that it declared.
    """

    parameter: ParameterSpec
    start: int
    stop: int
    """End of the part's elements [start, stop) in the arenas of weights and gradients."""
    state: Mapping[str, Tensor]
    """Optimizer state of the part by declared name, to be changed in place."""
    stored: Mapping[str, Tensor]
    """Weights as the kernels read them (`HostStore.stored_weights`); other code uses `weights`."""

    @contextmanager
    def weights(self) -> Iterator[Tensor]:
        """Yield the master weights, float32, to be changed in place within the `with` block.

        At the end of the block they are stored, together with the rounded copy that the device
        loads.
        """
        value = weights_of(self.stored)
        yield value
        store_weights(self.stored, value)

    def of(self, gradients: FlatNumbers) -> Tensor:
        """Return this part's elements of `gradients`; a whole part has the parameter's shape."""
        part = gradients[self.start : self.stop]
        whole = self.stop - self.start == self.parameter.numel
        return part.view(self.parameter.shape) if whole else part


class Optimizer(ABC):
    """Rule by which a step changes weights. A replica has one; it holds no tensors itself.

    The result must depend on the arguments only, bit for bit, on every machine: replicas whose
    steps differ drift apart. An optimizer that cannot promise this sets `reproducible` to False.
    """

    elementwise: ClassVar[bool] = False
    """True if no element's update depends on another element.

    All state then has the parameter's shape, or one element for each block of the parameter's
    elements, in order. Large parameters are updated in stretches of whole blocks, on several
    threads. Otherwise whole parameters are updated one after the other.
    """

    reproducible: ClassVar[bool] = True
    """True if a step gives the same bits on every machine.

    An optimizer without this property requires an update rule with steps of each peer's own.
    """

    @abstractmethod
    def state(self, parameter: ParameterSpec, form: StateForm) -> Mapping[str, StateTensor]:
        """Declare the state of one parameter by name: lowercase words, always in the same order.

        docs/contributor.md lists the names that are taken.

        Raises:
            ValueError: The state does not exist in this form.
        """

    @property
    def steps_on_devices(self) -> bool:
        """True if `update` accepts whole parameters whose tensors and gradient are on a device.

        On a GPU it then runs `device_kernels` on the current stream.
        """
        return False

    def products(self, parameter: ParameterSpec) -> float:
        """Return the number of multiplications and additions in matrix products of one update.

        Operations on single elements are not counted.
        """
        return 0.0

    @abstractmethod
    def update(self, part: Part, gradient: Tensor, step: StepTerms) -> None:
        """Apply the step to one part: change `part.state` and `part.weights()` in place.

        Parts are updated in any order, and on several threads if the optimizer is element-wise. An
        exception leaves the replica without a valid state.

        Args:
            part: Weights and state to change.
            gradient: Gradient before clipping (see `step.clipped`), of the part's shape, float32 or
                bfloat16; not to be changed.
            step: Numbers that all parts of the step share.
        """


def optimizer_state(
    optimizer: Optimizer, layout: ParameterLayout, form: StateForm
) -> dict[str, StateArena]:
    """Return dtype and layout of the arenas that hold an optimizer's state, by name.

    The arena of a name, such as a momentum, holds the tensors of that name for all trained
    parameters. Nothing is allocated.

    Args:
        optimizer: Declares the state of each parameter.
        layout: Parameters of the model.
        form: Form in which the replica stores its state.

    Raises:
        ValueError: A name has tensors of two dtypes, or a dtype is not in `STATE_DTYPES`.
    """
    shapes = dict[str, dict[str, tuple[int, ...]]]()
    dtypes = dict[str, torch.dtype]()
    for spec in layout.trained:
        for name, tensor in optimizer.state(spec, form).items():
            if dtypes.setdefault(name, tensor.dtype) != tensor.dtype:
                raise ValueError(f"optimizer state {name} is {dtypes[name]} and {tensor.dtype}")
            if tensor.dtype not in STATE_DTYPES:
                raise ValueError(f"optimizer state {name} is {tensor.dtype}, not in STATE_DTYPES")
            shapes.setdefault(name, {})[spec.name] = tensor.shape
    return {name: StateArena(dtypes[name], ParameterLayout.of(shapes[name])) for name in shapes}


def parts_of(optimizer: Optimizer, store: HostStore) -> list[Part]:
    """Return the parts of all trained parameters, in the order of the store's layout."""
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
    """Return the parts that live on the device, by parameter name, with tensors there."""

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
    """Yield the part without optimizer state, cut into stretches if it is large.

    Operations that only touch weights use these parts.
    """
    bare = replace(part, state={})
    if part.stop - part.start <= PIECE_ELEMENTS:
        yield bare
    else:
        yield from stretches(bare, PIECE_ELEMENTS, {})


def stretches(whole: Part, elements: int, blocks: Mapping[str, int]) -> Iterator[Part]:
    """Yield a whole parameter as flat stretches; the last one may be shorter.

    Args:
        whole: The parameter.
        elements: Elements of a stretch, a multiple of each block.
        blocks: `StateTensor.block` by name of the state.
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
    """Return the elements of a state tensor for the parameter's elements [start, stop)."""
    assert start % block == 0, "stretches are whole blocks"
    return tensor.view(-1)[start // block : -(-stop // block)]
