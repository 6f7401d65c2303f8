"""Vocabulary of the compiler: layout of parameters, and programs of sub-models.

Every replica keeps its parameters, moments and gradients in *arenas*. An arena is one flat tensor
for the whole model; its `ParameterLayout` depends on the model only. Peers cut the model into
different sub-models, but their arenas are equal. So any two peers can average, compare and transfer
arenas byte by byte.
"""

import math
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from atom.base.errors import ModelError

ALIGNMENT_ELEMENTS = 128
"""Every parameter starts at a multiple of this many elements.

The alignment of operands influences the choice of kernels, and another kernel gives other last
bits. Elementwise kernels treat an aligned parameter alike in every cut. Matrix products treat it
like a separate tensor, which a GPU allocator aligns to at least 256 bytes (128 elements
of 16 bits): cuBLAS considers alignments up to that size.
"""


def padded_elements(numel: int) -> int:
    """Return the elements that `numel` elements occupy in an arena or slot, including padding."""
    return -(-numel // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS


@dataclass(frozen=True)
class ParameterSpec:
    """Place of one parameter in an arena. `offset` and `numel` count elements, not bytes."""

    name: str
    shape: tuple[int, ...]
    offset: int
    numel: int
    hidden_matrix: bool = False
    """True if the parameter maps activations of one layer to activations of the next, so it is
    neither an embedding nor the output head. See `atom.graph.tracing.reading`."""
    frozen: bool = False
    """True if the parameter takes no gradient and no optimizer step changes it."""


def part_name(name: str, begin: int, end: int) -> str:
    """Return the name of some rows of a parameter: "blocks.3.expand.weight[0:256]"."""
    return f"{name}[{begin}:{end}]"


_PART = re.compile(r"(.+)\[(\d+):(\d+)\]")


class _SpecsByName(dict[str, ParameterSpec]):
    """Parameters by name. A `part_name` is found too, but is not an entry of the dictionary."""

    def __missing__(self, name: str) -> ParameterSpec:
        if not (part := _PART.fullmatch(name)):
            raise KeyError(name)
        spec, begin, end = self[part[1]], int(part[2]), int(part[3])
        row = math.prod(spec.shape[1:])
        shape, first = (end - begin, *spec.shape[1:]), spec.offset + begin * row
        assert 0 <= begin < end <= spec.shape[0]
        assert first % ALIGNMENT_ELEMENTS == 0
        return replace(spec, name=name, shape=shape, offset=first, numel=(end - begin) * row)


@dataclass(frozen=True)
class ParameterLayout:
    """Offsets of all parameters in a flat arena of `total_elements`. Padding holds zeros.

    Frozen parameters come last. Arenas of gradients and of optimizer state have only the first
    `trained_elements`.
    """

    specs: tuple[ParameterSpec, ...]
    total_elements: int
    trained_elements: int

    @classmethod
    def of(
        cls,
        shapes: Mapping[str, tuple[int, ...]],
        hidden_matrices: Container[str] = (),
        frozen: Container[str] = (),
    ) -> "ParameterLayout":
        """Lay out parameters in the given order, with all frozen ones at the end.

        Args:
            shapes: parameter name → shape, in the order of first use in the graph.
            hidden_matrices: names of the hidden matrices.
            frozen: names of the parameters that are not trained.
        """
        specs, offset, trained = list[ParameterSpec](), 0, 0
        for name in sorted(shapes, key=lambda name: name in frozen):
            shape, fixed = tuple(shapes[name]), name in frozen
            numel = math.prod(shape)
            specs.append(ParameterSpec(name, shape, offset, numel, name in hidden_matrices, fixed))
            offset += padded_elements(numel)
            trained = trained if fixed else offset
        return cls(tuple(specs), offset, trained)

    def with_frozen(self, shapes: Mapping[str, tuple[int, ...]]) -> "ParameterLayout":
        """Return the layout with further frozen parameters at the end.

        Args:
            shapes: parameter name → shape of the further parameters.
        """
        hidden = {spec.name for spec in self.specs if spec.hidden_matrix}
        frozen = {spec.name for spec in self.specs if spec.frozen}
        own = {spec.name: spec.shape for spec in self.specs}
        return ParameterLayout.of({**own, **shapes}, hidden, frozen | shapes.keys())

    @cached_property
    def trained(self) -> tuple[ParameterSpec, ...]:
        """All parameters that are not frozen."""
        return tuple(spec for spec in self.specs if not spec.frozen)

    @cached_property
    def by_name(self) -> Mapping[str, ParameterSpec]:
        """Parameters by name; rows of a parameter are found by their `part_name`."""
        return _SpecsByName({spec.name: spec for spec in self.specs})

    def whole_name(self, name: str) -> str:
        """Return the name of the whole parameter, given its name or a `part_name`."""
        return name if name in self.by_name else name.rpartition("[")[0]

    def elements(self, sub_model: "SubModel") -> dict[str, int]:
        """Return the number of elements, including padding, of each parameter of a sub-model."""
        names = sub_model.parameter_names
        return {name: padded_elements(self.by_name[name].numel) for name in names}

    def view(self, arena: torch.Tensor, name: str) -> torch.Tensor:
        """Return the view of `arena` that holds the named parameter (or part), in its shape."""
        spec = self.by_name[name]
        return arena[spec.offset : spec.offset + spec.numel].view(spec.shape)


@dataclass(frozen=True)
class ValueSpec:
    """Form of one tensor of the graph, for one micro-batch.

    Two specs are equal if their forms are, even if the tensors do not share memory.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    needs_grad: bool
    """True if a gradient flows back through the tensor. Decided when the model is traced."""
    memory: str = field(default="", compare=False)
    """Name of the memory that contains the tensor, equal for tensors that share memory. Empty if no
    call made the memory (batch, parameter, constant)."""
    memory_bytes: int = field(default=0, compare=False)
    """Size of the named memory in bytes; 0 if `memory` is empty."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements; an expanded axis (stride 0) counts once."""
        once = (n for n, step in zip(self.shape, self.stride, strict=True) if step)
        return math.prod(once) * self.dtype.itemsize

    def empty(self) -> torch.Tensor:
        """Return a new uninitialised leaf tensor of this form."""
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        return tensor.requires_grad_(self.needs_grad)


@dataclass(frozen=True)
class LayerCall:
    """Call of one generated class within a sub-model.

    Values of a sub-model are numbered: first its inputs, then the results of its layers.
    """

    class_name: str
    takes: tuple[int, ...]
    """Numbers of the values that are passed to the call."""
    gives: tuple[int, ...]
    """Numbers of the values that the call returns."""


@dataclass(frozen=True)
class SubModel:
    """Sequence of consecutive calls that is loaded, computed and dropped together.

    Its module has one `nn.Parameter` per entry of `parameters` and a `forward(*inputs) -> tuple`
    that returns one value per entry of `outputs`. The modules of sub-models with equal `layers` and
    `gives` differ only in the values of their parameters.
    """

    index: int
    parameters: tuple[tuple[str, str], ...]
    """Pairs (attribute path in the module, name in the layout), in the order of the module. A
    parameter that several layers use (tied weights) has several paths."""
    inputs: tuple[str, ...]
    """Names of the values that it uses: batch entries and outputs of earlier sub-models."""
    outputs: tuple[str, ...]
    """Names of the values for later sub-models; the last sub-model returns the program's `loss`."""
    inputs_need_grad: tuple[bool, ...]
    """Per input, True if a gradient flows back through it. Decided when the model is traced."""
    name: str = ""
    """Readable name: "blocks.3", "blocks.3 (1/2)", "blocks.3 (2/2) … blocks.5"."""
    layers: tuple[LayerCall, ...] = ()
    gives: tuple[int, ...] = ()
    """Numbers of the outputs among the sub-model's values (see `LayerCall`)."""

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names in the layout of its parameters, without repetitions."""
        return tuple(dict.fromkeys(name for _, name in self.parameters))


@dataclass(frozen=True)
class Program:
    """Model as a chain of sub-models, with the Python source that computes them."""

    layout: ParameterLayout
    sub_models: tuple[SubModel, ...]
    batch_inputs: tuple[str, ...]
    """Names of the batch's entries, in the order of the model's forward arguments."""
    loss: str
    """Name of the scalar value that is the mean loss of a micro-batch."""
    source: str
    graph_hash: str
    """SHA-256 (hexadecimal) of the traced graph: equal on all peers with the same model and
    versions."""
    values: Mapping[str, ValueSpec] = field(default_factory=dict)
    """Forms of all batch entries and of all values that cross a cut, by name."""
    parameter_dtype: torch.dtype = torch.float32
    """Common dtype of all parameters, in which the model was traced."""
    shared: frozenset[str] = frozenset()
    """Names of the `values` that are the same in every micro-batch, so that one copy serves all."""
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    """Constant tensors on the CPU, by their names in the source (hashes of their values)."""
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict, compare=False)
    """Operators for custom `autograd.Function`s, by their names in the source."""
    own_backwards: bool = False
    """True if any operator is not PyTorch's own. Its backward need not be linear (it may clip, for
    example), so it must receive the gradient of the mean loss itself, not a multiple."""
    weight: int | None = None
    """Weight of a micro-batch in sums of gradients and losses; None: its number of sequences."""

    def weight_of(self, batch: Mapping[str, torch.Tensor] | Mapping[str, ValueSpec]) -> int:
        """Return the weight of a micro-batch with these entries."""
        return batch[self.batch_inputs[0]].shape[0] if self.weight is None else self.weight


def require_fit(program: Program, batch: Mapping[str, torch.Tensor]) -> None:
    """Raise an error unless a micro-batch has the form of the example that was traced.

    The shapes, dtypes and absent entries of the example are part of the program. Without this check
    another batch would fail deep inside the program, or an entry would be ignored silently.

    Raises:
        ModelError: names the first entry that is missing, unknown, or has another shape or dtype.
    """
    for name in dict.fromkeys([*program.batch_inputs, *batch]):
        value = batch.get(name)
        known = program.values.get(name, value) if name in program.batch_inputs else None
        given, wanted = _form(value), _form(known)
        if given != wanted:
            raise ModelError(
                f"the micro-batch's {name} is {given}, but was {wanted} when the program was made",
                "give every micro-batch the entries, shapes and dtypes of the example batch",
            )


def _form(value: object) -> str:
    if isinstance(value, torch.Tensor | ValueSpec):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "missing" if value is None else f"{type(value).__name__}, not a tensor"
