"""Model as the planner sees it: a chain of operations, and the machine that runs them.

Operations are listed in the order in which they run. A sub-model is a sequence of consecutive
operations. This file knows no graphs and no devices: seconds and bytes come from a profile
(measured) or from rates (assumed).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Seconds:
    """Seconds that a layer or a call takes for one micro-batch.

    Attributes:
        forward_s: seconds of the forward pass.
        backward_s: seconds of the backward pass. They include adding the parameters' gradients to
            float32 sums, but no recomputed forward.
    """

    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Kernel:
    """Work of one kernel launch."""

    flops: float
    """Floating-point operations of matrix products (a multiply-add is two); 0 for other kernels."""
    moved_bytes: int
    """Bytes read and written."""
    dtype: torch.dtype
    """Dtype of the result. It selects the compute rate of the device."""


@dataclass(frozen=True)
class Operation:
    """Cost of one call of the traced graph, for one micro-batch."""

    name: str
    """Module path and operator, for messages: `blocks.3.mlp linear`."""
    parameters: Mapping[str, int]
    """Name in the layout → elements, including padding. Every operation that uses a tied parameter
    lists it."""
    forward_s: float
    backward_s: float
    """Seconds of the backward pass, without a recomputed forward of the whole sub-model."""
    working_bytes: int
    """Bytes made by this operation that autograd keeps from forward to backward."""
    transient_bytes: int
    """Peak bytes in addition to all kept bytes while it runs, forward or backward: scratch memory,
    and gradients of its inputs and outputs."""
    forward: tuple[Kernel, ...] = ()
    backward: tuple[Kernel, ...] = ()
    frozen: frozenset[str] = frozenset()
    """Names of its parameters that take no gradient."""


@dataclass(frozen=True)
class Value:
    """Memory of a tensor and its views, which one operation makes and later ones use."""

    size_bytes: int
    made_by: int
    """Position of the operation that makes the value; -1 for an entry of the batch."""
    last_used_by: int
    used_by: tuple[int, ...] = ()
    """Positions of all operations that use the value, ascending. If empty, only the last user is
    known."""
    has_gradient: bool = True
    shared: bool = False
    """True if the value is the same in every micro-batch, so that one copy serves all."""


@dataclass(frozen=True)
class Chain:
    """Operations of a model in the order in which they run, and the values between them."""

    operations: tuple[Operation, ...]
    values: tuple[Value, ...]
    forbidden: frozenset[int] = frozenset()
    """Positions of operations at which no sub-model may begin.

    A call that returns several tensors stays together with the calls that pick them, and memory
    stays together with its last change in place.
    """
    remembering: "Chain | None" = None
    """Chain of the same operations without the recomputation that the model itself requests
    (`torch.utils.checkpoint`): faster, with more memory. None if the model requests none."""


ADDED = 3
"""Bytes that the host reads and writes to add one byte of a gradient to a sum: two read, one
written."""


@dataclass(frozen=True)
class Machine:
    """Transfer rates between host and device, and rates of the host's memory.

    The model assumes that copies in both directions run at the same time at these rates.
    """

    load_bytes_per_s: float
    """Rate of copies from the host to the device."""
    gradient_bytes_per_s: float
    """Rate of copies of gradients from the device to the host. If the device is the CPU, adding
    them is part of the copy."""
    sum_bytes_per_s: float = math.inf
    """Bytes per second that the host reads and writes while it only adds gradients. Infinite if
    adding is part of the copy."""
    memory_bytes_per_s: float = math.inf
    """Bytes per second that the host's memory moves in total, for copies, additions and the
    optimizer's step together."""

    @property
    def adds_apart(self) -> bool:
        """True if the host adds gradients in a separate step, while other copies run."""
        return math.isfinite(self.sum_bytes_per_s)

    def share(self, bytes_per_s: float) -> float:
        """Return the fraction (0 to 1) of the host's memory bandwidth that such traffic takes."""
        return min(bytes_per_s / self.memory_bytes_per_s, 1.0)

    @property
    def gradient_byte_s(self) -> float:
        """Seconds per byte in a long sequence of gradients, where copies and additions overlap."""
        return max(1 / self.gradient_bytes_per_s, ADDED / self.sum_bytes_per_s)
