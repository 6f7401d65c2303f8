"""A model as a planner sees it: a chain of operations, and the machine that they run on.

Operations stand in the order in which they run. A sub-model is a run of consecutive operations.
Nothing here knows graphs or devices: seconds and bytes come from a profile (measured) or from
rates (assumed).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Seconds:
    """Of a layer or a call on one micro-batch. `backward_s` without a recomputed forward, with the
    sums of parameters' gradients in float32."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Kernel:
    """One launch: products are counted as two operations each, all else only by its bytes."""

    flops: float
    moved_bytes: int
    """Read and written."""
    dtype: torch.dtype
    """Of the result: which of a device's rates holds."""


@dataclass(frozen=True)
class Operation:
    """One call of the traced graph, for one micro-batch."""

    name: str
    """For messages: the module's path and the operator, `blocks.3.mlp linear`."""
    parameters: Mapping[str, int]
    """Name in the layout → elements, alignment included; a tied parameter is listed by every
    operation using it."""
    forward_s: float
    backward_s: float
    """Without the recomputed forward."""
    working_bytes: int
    """What forward keeps for backward."""
    transient_bytes: int
    """The most it holds besides while it runs, forward or backward: scratch, and gradients of
    its inputs and outputs."""
    forward: tuple[Kernel, ...] = ()
    backward: tuple[Kernel, ...] = ()
    frozen: frozenset[str] = frozenset()
    """Of its parameters, those without gradient."""


@dataclass(frozen=True)
class Value:
    """Memory that operations hand on: a tensor and its views. `made_by` -1: an entry of the
    batch."""

    size_bytes: int
    made_by: int
    last_used_by: int
    used_by: tuple[int, ...] = ()
    """Every operation that uses it, ascending; empty: only the last one is known."""
    has_gradient: bool = True
    shared: bool = False
    """The same in every micro-batch: one of it is enough for all."""


@dataclass(frozen=True)
class Chain:
    operations: tuple[Operation, ...]
    values: tuple[Value, ...]
    forbidden: frozenset[int] = frozenset()
    """Position p: no sub-model may begin at operation p. Tuples and their picks, memory and its
    last change in place stay together."""
    remembering: "Chain | None" = None
    """The same operations where nothing within a sub-model is computed again: faster, with more
    memory. None: it is this one."""


ADDED = 3
"""Times its size: what the host reads and writes to add a gradient."""


@dataclass(frozen=True)
class Machine:
    """How fast bytes move between host and device, both ways at once, and what the host makes of
    them. Where the device is the CPU, gradients are added as they move."""

    load_bytes_per_s: float
    gradient_bytes_per_s: float
    sum_bytes_per_s: float = math.inf
    """That the host reads and writes where it adds gradients and does nothing else."""
    memory_bytes_per_s: float = math.inf
    """That the host reads and writes, whoever asks: copies, additions and the optimizer's step."""

    @property
    def adds_apart(self) -> bool:
        """Whether the host adds gradients beside the copies of others."""
        return math.isfinite(self.sum_bytes_per_s)

    def share(self, bytes_per_s: float) -> float:
        """Of what the host's memory moves."""
        return min(bytes_per_s / self.memory_bytes_per_s, 1.0)

    @property
    def gradient_byte_s(self) -> float:
        """From a byte of gradients to the next, where many leave one after the other."""
        return max(1 / self.gradient_bytes_per_s, ADDED / self.sum_bytes_per_s)
