"""The whole model in host memory: flat arenas of weights, gradients and optimizer state.

A running optimizer step marks pieces of the arenas as it finishes them (`Readiness`). Threads that
copy to the device wait for the pieces of their copy. So a forward begins when its own parameters
are ready, before the whole step is done, and no half-written parameter is copied.

A replica may store its weights in several number formats (`StateForm`). A *split* weight is a
float32 in two halves. The high half is a bfloat16, the weight rounded to nearest. The device loads
this half, so no separate copy is needed. The low half is the 16 bits that were cut off. No
information is lost: high · 2¹⁶ + low, with the low half read as a signed number, are the bits of
the float32.

Ties are rounded away from zero, not to even. Rounding to even maps 2¹⁶ + 1 neighbours to a bfloat16
whose last bit is 0, one more than 16 bits can distinguish.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor

from atom.base.errors import AtomError
from atom.graph.ir import ParameterLayout
from atom.swap.device import Device
from atom.swap.device_state import DeviceState
from atom.swap.host_memory import allocate_host_memory

PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes in which sub-models may compute; the master weights always have 32 bits."""
WORKING = "working"
"""Name of the rounded copy of the weights that the device loads, next to the weights' arenas."""
FROZEN = "frozen"
"""Name of the parameters that no step changes, which form an arena of their own."""
MASTER, HIGH, LOW = "master", "master_high", "master_low"
WEIGHTS = frozenset({MASTER, HIGH, LOW})
_PIECE_ELEMENTS = 2**16
"""Elements that are split at a time, so that temporary results stay in the cache."""


@dataclass(frozen=True)
class StateArena:
    """Declaration of a flat tensor of a replica's state: its dtype and parameter layout.

    Parameters may be missing, and may have other shapes here than in the model.
    """

    dtype: torch.dtype
    layout: ParameterLayout

    @property
    def elements(self) -> int:
        """Number of elements of the trained parameters; the arena holds no others."""
        return self.layout.trained_elements

    @property
    def size_bytes(self) -> int:
        """Bytes of the elements."""
        return self.elements * self.dtype.itemsize


class StateForm(StrEnum):
    """Form in which a replica stores weights and optimizer state.

    All peers of a swarm use the same form, because each form gives different bits.
    """

    EXACT = "exact"
    """Weights in float32; in 16-bit precisions the device loads a rounded copy."""
    SPLIT = "split"
    """Split weights, with the precision of float32 but without the copy; bfloat16 only."""
    HALF = "half"
    """Split weights, and optimizer state rounded to 16 bits by the optimizer; bfloat16 only."""

    @property
    def splits(self) -> bool:
        """True if the weights are split into halves."""
        return self is not StateForm.EXACT

    @property
    def weight_dtypes(self) -> Mapping[str, torch.dtype]:
        """Dtype of each arena of master weights, by name."""
        return {HIGH: torch.bfloat16, LOW: torch.int16} if self.splits else {MASTER: torch.float32}

    def require(self, precision: torch.dtype) -> None:
        """Check that sub-models which compute in `precision` can load this form.

        Raises:
            ValueError: They cannot.
        """
        if self.splits and precision != torch.bfloat16:
            raise ValueError(f"state {self.value} requires weights in bfloat16, not {precision}")


def split(value: Tensor, high: Tensor, low: Tensor) -> None:
    """Split float32 weights into halves.

    Args:
        value: Weights in float32.
        high: Receives the high halves: bfloat16, contiguous, of the same shape.
        low: Receives the low halves: int16, contiguous, of the same shape.
    """
    bits = value.contiguous().view(-1).view(torch.int32)
    for start in range(0, bits.numel(), _PIECE_ELEMENTS):
        piece = slice(start, start + _PIECE_ELEMENTS)
        chunk = bits[piece]
        high.view(-1)[piece].copy_(((chunk + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16))
        low.view(-1)[piece].copy_(chunk.to(torch.int16))


def joined(high: Tensor, low: Tensor) -> Tensor:
    """Return the float32 weights with these halves, in new memory."""
    bits = (high.contiguous().view(torch.int16).to(torch.int32) << 16) + low.to(torch.int32)
    return bits.view(torch.float32)


def round_to_bfloat16(values: Tensor, out: Tensor) -> None:
    """Round finite float32 `values` to the nearest bfloat16 in `out`, ties to even.

    Integer operations give the same result on every machine. An instruction that PyTorch may use
    (VCVTNE2PS2BF16) treats subnormal numbers as 0.
    """
    bits = values.view(torch.int32)
    rounded = (bits >> 16).bitwise_and_(1).add_(bits).add_(0x7FFF).bitwise_right_shift_(16)
    out.view(torch.int16).copy_(rounded)


class StepFailed(AtomError):
    """Error of an optimizer step that ended early: only some parameters are updated."""

    def __init__(self, failure: BaseException | None) -> None:
        """Describe the failure. Each waiting thread raises a separate exception.

        Args:
            failure: Exception of the thread that ran the step.
        """
        why = f": {type(failure).__name__}: {failure}" if failure is not None else ""
        super().__init__(f"the optimizer's step failed{why}")
        self.__cause__ = failure


class Readiness:
    """State of the pieces of one step, all unfinished at first. Thread-safe."""

    def __init__(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Start with no piece finished.

        Args:
            pieces: Arena elements [start, stop), ascending and disjoint. Elements between them are
                not rewritten, so no reader waits for them.
        """
        self._starts = [start for start, _ in pieces]
        self._stops = [stop for _, stop in pieces]
        self._done = bytearray(len(pieces))
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def finish(self, piece: int) -> None:
        """Mark the piece with this index as readable."""
        with self._changed:
            self._done[piece] = True
            self._changed.notify_all()

    def fail(self, failure: BaseException) -> None:
        """Give up the unfinished pieces: present and future waits for them raise StepFailed."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def wait(self, start: int, stop: int) -> None:
        """Wait until elements [start, stop) may be read.

        Raises:
            StepFailed: The step failed before.
        """
        first, end = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        with self._changed:
            while self._done.find(0, first, end) >= 0:
                if self._failure is not None:
                    raise StepFailed(self._failure)
                self._changed.wait()


@dataclass
class HostStore:
    """Arenas of one replica, with zeros in the gaps between parameters.

    `state` holds weights and optimizer state, as `arenas` declares them. `working` is the arena
    that the device loads. Its first part is the master weights in float32, and in 16-bit precisions
    a rounded copy of them, or their high halves. The rest is the frozen parameters, which are
    stored nowhere else.

    `version` counts changes of `working`; a copy that was loaded under another version is stale.
    `readiness` says which parts of `working` may be read while a step is running; None: all of
    them. Nothing else is synchronised: the engine and the optimizer take turns.
    """

    layout: ParameterLayout
    precision: torch.dtype
    form: StateForm
    arenas: Mapping[str, StateArena]
    state: Mapping[str, Tensor]
    gradients: Tensor
    """[layout.trained_elements] float32 or bfloat16."""
    working: Tensor
    """[layout.total_elements] in the precision."""
    version: int = field(default=0)
    readiness: Readiness | None = field(default=None)
    on_device: DeviceState | None = field(default=None)
    """Parameters that live on the device; their parts of the arenas may be out of date."""

    @classmethod
    def allocate(
        cls,
        layout: ParameterLayout,
        precision: torch.dtype = torch.float32,
        host_memory: Callable[[int, torch.dtype], Tensor] = allocate_host_memory,
        form: StateForm = StateForm.EXACT,
        gradients: torch.dtype = torch.float32,
        optimizer_state: Mapping[str, StateArena] | None = None,
        moves_state: bool = False,
    ) -> "HostStore":
        """Allocate a store whose arenas are all zero.

        Args:
            layout: Layout of the parameters.
            precision: Dtype in which sub-models compute.
            host_memory: Function of elements and dtype that allocates memory which the device
                copies: the working copy and the gradients.
            form: Form of the state.
            gradients: Dtype in which gradients leave the device and are summed.
            optimizer_state: State that the optimizer declares, by name.
            moves_state: True if some of the state will `live_on` the device.

        Raises:
            ValueError: The precision is not in PRECISIONS, or does not suit the form or the
                gradients.
            MemoryError: The host has too little memory.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"weights in {precision}: convert them with model.float()")
        form.require(precision)
        if gradients != torch.float32 and (gradients, precision) != (torch.bfloat16,) * 2:
            raise ValueError(f"gradients in {gradients} do not suit weights in {precision}")
        arenas = state_arenas(layout, form, optimizer_state or {})
        moved = HIGH if form.splits else MASTER if precision == torch.float32 else None
        working = host_memory(layout.total_elements, precision)
        allocate = host_memory if moves_state else allocate_host_memory
        state = {
            name: working[: arena.elements]
            if name == moved
            else allocate(arena.elements, arena.dtype)
            for name, arena in arenas.items()
        }
        sums = host_memory(layout.trained_elements, gradients)
        return cls(layout, precision, form, arenas, state, sums, working)

    @classmethod
    def of_weights(cls, layout: ParameterLayout, working: Tensor) -> "HostStore":
        """Return a store for passes without gradients, with nothing but the arena to load.

        Args:
            layout: Layout of the parameters.
            working: [layout.total_elements] in the precision.
        """
        none = torch.empty(0)
        return cls(layout, working.dtype, StateForm.EXACT, {}, {}, none, working)

    @property
    def master(self) -> Tensor:
        """Master weights, float32; they exist only if the form does not split them."""
        return self.state[MASTER]

    @property
    def frozen(self) -> Tensor:
        """Frozen parameters, one after the other: the end of `working`."""
        return self.working[self.layout.trained_elements :]

    @property
    def _has_working_copy(self) -> bool:
        """True if `working` holds a rounded copy of the weights."""
        return self._loaded_arena == WORKING

    @property
    def _loaded_arena(self) -> str:
        """Name of the arena whose memory is the first part of `working`."""
        if self.form.splits:
            return HIGH
        return MASTER if self.precision == torch.float32 else WORKING

    def live_on(self, device: Device, names: frozenset[str]) -> DeviceState:
        """Keep the state and the gradients of some parameters on a device from now on.

        The device's memory starts as zeros.

        Returns:
            The new `on_device`.
        """
        state = {name: (self.state[name], arena.layout) for name, arena in self.arenas.items()}
        state[self._loaded_arena] = self.working, self.layout
        self.on_device = DeviceState(names, state, (self.gradients, self.layout), device)
        return self.on_device

    def working_pieces(self, start: int, stop: int) -> Iterable[tuple[int, Tensor]]:
        """Return the pieces of `working`'s elements [start, stop), as `Mirror.pieces`."""
        if self.on_device is None:
            return [(start, self.working[start:stop])]
        return self.on_device.state[self._loaded_arena].pieces(start, stop)

    def gradient_pieces(self, start: int, stop: int) -> Iterable[tuple[int, Tensor]]:
        """Return the pieces of the gradients' elements [start, stop), as `Mirror.pieces`."""
        if self.on_device is None:
            return [(start, self.gradients[start:stop])]
        return self.on_device.sums.pieces(start, stop)

    def clear_state(self) -> None:
        """Set weights and optimizer state to zero."""
        for arena in self.state.values():
            arena.zero_()

    def stored_weights(self, name: str) -> dict[str, Tensor]:
        """Return views of one trained parameter's weights, by the name of their arena.

        The names are `MASTER`, or `HIGH` and `LOW`, and `WORKING` if a rounded copy exists.
        """
        arenas = {part: self.state[part] for part in self.form.weight_dtypes}
        if self._has_working_copy:
            arenas[WORKING] = self.working
        return {part: self.layout.view(arena, name) for part, arena in arenas.items()}

    def write_weights(self, name: str, value: Tensor) -> None:
        """Set one parameter's master weights, and the copy that the device loads.

        Call `changed` after the last parameter.

        Raises:
            ValueError: The value has another shape than the parameter.
        """
        spec = self.layout.by_name[name]
        if value.shape != spec.shape:
            raise ValueError(f"{name}: the shape {tuple(value.shape)} is not {spec.shape}")
        if spec.frozen:
            self.layout.view(self.working, name).copy_(value.detach())
        else:
            store_weights(self.stored_weights(name), value.detach().float())

    def weights(self, name: str) -> Tensor:
        """Return one parameter's master weights, float32.

        They are a view, but a copy if the weights are split, or frozen in 16 bits.
        """
        if self.layout.by_name[name].frozen:
            return self.layout.view(self.working, name).float()
        return weights_of(self.stored_weights(name))

    def changed(self) -> None:
        """Mark all loaded copies of `working` as stale. Call it after every change of `working`."""
        self.version += 1

    def wait_ready(self, stretches: Iterable[tuple[int, int]]) -> None:
        """Wait until the given elements [start, stop) of `working` hold this version. Thread-safe.

        Raises:
            StepFailed: The running step failed before.
        """
        if self.readiness is not None:
            for start, stop in stretches:
                self.readiness.wait(start, stop)

    def round_master(self) -> None:
        """Update `working` and the device from the master weights; mark loaded copies as stale."""
        if self._has_working_copy:
            self.working[: self.layout.trained_elements].copy_(self.master)
        if self.on_device is not None:
            self.on_device.to_device()
        self.changed()


def weights_of(stored: Mapping[str, Tensor]) -> Tensor:
    """Return the master weights in float32: a view, or new memory if they are split."""
    return stored[MASTER] if MASTER in stored else joined(stored[HIGH], stored[LOW])


def store_weights(stored: Mapping[str, Tensor], value: Tensor) -> None:
    """Write weights to their arenas, together with the copy that the device loads.

    Args:
        stored: Views of one parameter's weights (`HostStore.stored_weights`).
        value: Weights in float32, in the parameter's shape; may be the result of
            `weights_of(stored)`.
    """
    if MASTER not in stored:
        split(value, stored[HIGH], stored[LOW])
        return
    stored[MASTER].copy_(value)
    if WORKING in stored:
        stored[WORKING].copy_(value)


def state_arenas(
    layout: ParameterLayout, form: StateForm, optimizer_state: Mapping[str, StateArena]
) -> dict[str, StateArena]:
    """Return all arenas of a replica's state by name: weights, then optimizer state."""
    weights = {name: StateArena(dtype, layout) for name, dtype in form.weight_dtypes.items()}
    assert not weights.keys() & optimizer_state.keys(), "optimizer state uses a name of the weights"
    return {**weights, **optimizer_state}


def beside_bytes(layout: ParameterLayout, precision: torch.dtype, form: StateForm) -> int:
    """Return the bytes that the device loads and that are not state.

    These are rounded copies of weights, and frozen parameters.
    """
    within = form.splits or precision == torch.float32
    elements = layout.total_elements - (layout.trained_elements if within else 0)
    return elements * precision.itemsize
