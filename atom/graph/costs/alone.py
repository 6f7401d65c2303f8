"""One call of a graph, alone: run on tensors that look and lie in memory like its own.

What a call keeps, moves and takes is a matter of its operator and of its arguments' forms. So it
is asked of the call itself, run by itself, once for all calls of one form.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from atom.graph.traced import nested_graph
from atom.graph.tracing.effects import bind


@dataclass(frozen=True)
class Form:
    """How a tensor looks and lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    needs_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Form":
        needs_grad = tensor.requires_grad
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, needs_grad)

    @property
    def span(self) -> int:
        """Elements from the first to the last one, gaps included."""
        if 0 in self.shape:
            return 0
        steps = zip(self.shape, self.stride, strict=True)
        return 1 + sum((extent - 1) * step for extent, step in steps)

    @property
    def size_bytes(self) -> int:
        """Of the memory it covers: a value expanded over a dimension lies there once."""
        return self.span * self.dtype.itemsize


Inputs = Mapping[fx.Node, torch.Tensor]
Fill = Callable[[fx.Node, Form], torch.Tensor]
"""Makes a flat tensor of `form.span` elements for an argument."""


@dataclass(frozen=True)
class Outcome:
    """A call's tensors (nested ones in order), and what a backward through it needs."""

    tensors: tuple[torch.Tensor, ...]
    single: bool
    """Whether the call gives one tensor, not a list of them."""
    leaves: tuple[torch.Tensor, ...] = field(repr=False)

    def roots(self) -> list[torch.Tensor]:
        return [tensor for tensor in self.tensors if tensor.requires_grad]


def arguments_of(node: fx.Node) -> list[fx.Node]:
    """The tensors a call reads, each once; nested graphs are none."""
    return [argument for argument in node.all_input_nodes if argument.op != "get_attr"]


def form_key(node: fx.Node, forms: Sequence[Form]) -> Hashable:
    """Equal for calls that do the same to tensors of the same forms."""
    index = {argument: number for number, argument in enumerate(arguments_of(node))}

    def text(argument: fx.Node) -> str:
        return f"%{index[argument]}" if argument in index else nested_graph(argument).code

    arguments = map_arg((node.args, dict(node.kwargs)), text)
    return str(node.target), repr(arguments), tuple(forms)


def make_inputs(
    node: fx.Node, forms: Sequence[Form], fill: Fill
) -> tuple[dict[fx.Node, torch.Tensor], tuple[torch.Tensor, ...]]:
    """Arguments by node, and the leaves among them that want a gradient."""
    inputs, leaves = {}, []
    mutable = changes_arguments(node)
    for argument, form in zip(arguments_of(node), forms, strict=True):
        tensor = fill(argument, form).as_strided(form.shape, form.stride)
        if form.needs_grad and form.dtype.is_floating_point:
            tensor.requires_grad_()
            leaves.append(tensor)
        # A leaf that wants a gradient, and a view, may not be changed in place; a copy may.
        inputs[argument] = tensor.clone() if mutable else tensor
    return inputs, tuple(leaves)


def forward(
    node: fx.Node, inputs: Inputs, leaves: tuple[torch.Tensor, ...], fused: bool = False
) -> Outcome:
    """Runs the call with gradients on. `fused`: with the kernels that a GPU has for it."""
    target, arguments = _as_on_gpu(node) if fused else (node.target, (node.args, node.kwargs))
    assert callable(target)
    positional, named = _filled(arguments, inputs)
    with torch.enable_grad():
        result = target(*positional, **named)
    tensors = tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
    return Outcome(tensors, isinstance(result, torch.Tensor), leaves)


def backward(outcome: Outcome) -> Sequence[torch.Tensor | None]:
    """Runs the call's backward, if it has one. Gives the leaves' gradients."""
    roots = outcome.roots()
    if not roots or not outcome.leaves:
        return ()
    gradients = [torch.ones_like(root) for root in roots]
    return torch.autograd.grad(roots, outcome.leaves, gradients, allow_unused=True)


def _filled(value: Any, inputs: Inputs) -> Any:
    def fill(argument: fx.Node) -> Any:
        return inputs[argument] if argument in inputs else nested_graph(argument)

    return map_arg(value, fill)


def changes_arguments(node: fx.Node) -> bool:
    """Whether the call writes to what it is given: such arguments serve once."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _as_on_gpu(node: fx.Node) -> tuple[Any, tuple[Any, Any]]:
    """The call, with the slow path that a CPU takes replaced by what a GPU runs.

    Dropout keeps one byte per element there, and attention never its matrix of scores.
    """
    name = str(getattr(node.target, "_opname", ""))
    if name == "dropout" and bind(node)["train"]:
        bound = bind(node)
        return _dropout, ((bound["input"], bound["p"]), {})
    if name == "scaled_dot_product_attention":
        return node.target, ((), {**bind(node), "dropout_p": 0.0})
    return node.target, (node.args, node.kwargs)


def _dropout(hidden: torch.Tensor, probability: float) -> torch.Tensor:
    return torch.native_dropout(hidden, probability, True)[0]
