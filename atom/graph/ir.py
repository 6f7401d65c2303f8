"""The compiler's vocabulary: where parameters live, and what a program of sub-models is.

Every replica keeps its parameters, moments and gradients in *arenas*: one flat tensor for the
whole model, laid out by a `ParameterLayout` that depends on the model alone. How a peer cuts the
model into sub-models differs from peer to peer; the arenas do not, so any two peers can average,
compare and hand over arenas byte by byte.
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
"""Every parameter starts at a multiple of this: elementwise kernels treat it alike in any cut, and
matrix products as they do a tensor of its own, which a GPU's allocator puts at 256 bytes or more:
cuBLAS asks how a matrix is aligned, up to these, before it picks a kernel."""


def padded_elements(numel: int) -> int:
    """Elements a parameter takes up in an arena or slot, padding included."""
    return -(-numel // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter's place in an arena. `offset` and `numel` count elements, not bytes."""

    name: str
    shape: tuple[int, ...]
    offset: int
    numel: int
    hidden_matrix: bool = False
    """It maps one layer's activations to the next one's: see `atom.graph.tracing.hidden_matrices`.
    No embedding, no output head."""
    frozen: bool = False
    """It takes no gradient, and no step changes it."""


def part_name(name: str, begin: int, end: int) -> str:
    """Of some rows of a parameter: "blocks.3.expand.weight[0:256]"."""
    return f"{name}[{begin}:{end}]"


_PART = re.compile(r"(.+)\[(\d+):(\d+)\]")


class _Places(dict[str, ParameterSpec]):
    """By name. Rows of a parameter are found by theirs; they are no entries."""

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
    """Where each parameter lives in a flat arena of `total_elements`; gaps hold zeros.

    Frozen parameters come last: arenas of gradients and state end before them, after
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
        """Lays parameters out in the order given (order of first use in the graph), those that
        are trained before the `frozen` ones."""
        specs, offset, trained = list[ParameterSpec](), 0, 0
        for name in sorted(shapes, key=lambda name: name in frozen):
            shape, still = tuple(shapes[name]), name in frozen
            numel = math.prod(shape)
            specs.append(ParameterSpec(name, shape, offset, numel, name in hidden_matrices, still))
            offset += padded_elements(numel)
            trained = trained if still else offset
        return cls(tuple(specs), offset, trained)

    @cached_property
    def trained(self) -> tuple[ParameterSpec, ...]:
        """All but the frozen ones."""
        return tuple(spec for spec in self.specs if not spec.frozen)

    @cached_property
    def by_name(self) -> Mapping[str, ParameterSpec]:
        """Some rows of a parameter are found by their `part_name` as well."""
        return _Places({spec.name: spec for spec in self.specs})

    def whole_name(self, name: str) -> str:
        """Of the parameter that it names, or of which it names rows."""
        return name if name in self.by_name else name.rpartition("[")[0]

    def elements(self, sub_model: "SubModel") -> dict[str, int]:
        """Of each of its parameters, padding included."""
        names = sub_model.parameter_names
        return {name: padded_elements(self.by_name[name].numel) for name in names}

    def view(self, arena: torch.Tensor, name: str) -> torch.Tensor:
        """The named parameter's part of `arena`, in the parameter's own shape."""
        spec = self.by_name[name]
        return arena[spec.offset : spec.offset + spec.numel].view(spec.shape)


@dataclass(frozen=True)
class ValueSpec:
    """What a tensor of the graph looks like for one micro-batch. Equal for those that look alike,
    whatever memory they lie in."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    needs_grad: bool
    """Does a gradient flow back through it (static, decided at trace time)."""
    memory: str = field(default="", compare=False)
    """Name of the memory that calls made and it lies in: the same for values that share it."""
    memory_bytes: int = field(default=0, compare=False)
    """Of that memory."""

    @property
    def size_bytes(self) -> int:
        """Along an axis that it is expanded over it lies in memory once."""
        once = (n for n, step in zip(self.shape, self.stride, strict=True) if step)
        return math.prod(once) * self.dtype.itemsize

    def empty(self) -> torch.Tensor:
        """A leaf that looks like it, in memory of its own."""
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        return tensor.requires_grad_(self.needs_grad)


@dataclass(frozen=True)
class LayerCall:
    """A call of one generated class within a sub-model. The sub-model's values are numbered: first
    its inputs, then what its layers give."""

    class_name: str
    takes: tuple[int, ...]
    gives: tuple[int, ...]


@dataclass(frozen=True)
class SubModel:
    """A run of consecutive calls that is loaded, computed and dropped together.

    Its module has one `nn.Parameter` per entry of `parameters` and a `forward(*inputs) -> tuple`
    that returns one value per entry of `outputs`. Sub-models with equal `layers` and `gives` have
    the same module but for the parameters' values.
    """

    index: int
    parameters: tuple[tuple[str, str], ...]
    """(attribute path in the module, name in the layout), in the module's order. One that several
    layers use (tied weights) has several paths."""
    inputs: tuple[str, ...]
    """Names of the values taken: batch entries and outputs of earlier sub-models."""
    outputs: tuple[str, ...]
    """Names of the values given to later sub-models; the last one gives the program's `loss`."""
    inputs_need_grad: tuple[bool, ...]
    """Per input: does a gradient flow back through it (static, decided at trace time)."""
    name: str = ""
    """For people: "blocks.3", "blocks.3 (1/2)", "blocks.3 (2/2) … blocks.5"."""
    layers: tuple[LayerCall, ...] = ()
    gives: tuple[int, ...] = ()
    """The outputs, by their numbers among the sub-model's values."""

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """In the layout, each once."""
        return tuple(dict.fromkeys(name for _, name in self.parameters))


@dataclass(frozen=True)
class Program:
    """A model as a chain of sub-models, with the readable source that computes them."""

    layout: ParameterLayout
    sub_models: tuple[SubModel, ...]
    batch_inputs: tuple[str, ...]
    """Names of the batch's entries, in the order of the model's forward arguments."""
    loss: str
    """Name of the value that is the mean loss of a micro-batch (a scalar)."""
    source: str
    graph_hash: str
    """sha256 hex of the traced graph: the same on every peer with the same model and versions."""
    values: Mapping[str, ValueSpec] = field(default_factory=dict)
    """Every batch entry and every value that crosses a cut, by name."""
    parameter_dtype: torch.dtype = torch.float32
    """The one dtype of all parameters: the dtype the model was traced in."""
    shared: frozenset[str] = frozenset()
    """Of `values`, those that are the same in every micro-batch: one of each is enough."""
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False)
    """On the CPU, by the hashes of their values, by which the source names them."""
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict, compare=False)
    """The operators for custom `autograd.Function`s, by the source's names for them."""
    own_backwards: bool = False
    """Whether some backward is not PyTorch's own: it may clip what it is given, or the like, so it
    has to be given the gradient of the mean loss, and no multiple of that."""


def require_fit(program: Program, batch: Mapping[str, torch.Tensor]) -> None:
    """A program has the shapes, dtypes and `None`s that it was traced with: anything else would
    fail deep inside it, or be silently ignored.

    Raises: ModelError naming the first entry that is missing, unknown, or of another shape or
    dtype.
    """
    for name in dict.fromkeys([*program.batch_inputs, *batch]):
        value = batch.get(name)
        known = program.values.get(name, value) if name in program.batch_inputs else None
        given, wanted = _look(value), _look(known)
        if given != wanted:
            raise ModelError(
                f"the micro-batch's {name} is {given}, and was {wanted} when the program was made",
                "every micro-batch has the entries, shapes and dtypes of the example",
            )


def _look(value: object) -> str:
    if isinstance(value, torch.Tensor | ValueSpec):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "left out" if value is None else f"{type(value).__name__}, no tensor"
