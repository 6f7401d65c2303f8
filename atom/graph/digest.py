"""The graph's identity: what is computed, from which shapes, not how anything is called."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from atom.graph.ir import ValueSpec
from atom.graph.traced import Constant, Span, nested_graph, operator_text


def graph_hash(
    inputs: Sequence[fx.Node],
    calls: Sequence[fx.Node],
    loss: fx.Node,
    specs: Mapping[fx.Node, ValueSpec],
    constants: Mapping[fx.Node, Constant],
    recomputed: Sequence[Span] = (),
) -> str:
    """sha256 hex over operators, arguments, shapes, dtypes, gradients, constants' values, and what
    is recomputed.

    `inputs` are the placeholders in a canonical order: parameters in layout order, constants,
    batch entries. A tied parameter is one input used twice, so tying is part of the identity.
    """
    digest = hashlib.sha256()
    index: dict[fx.Node, int] = {}
    for node in inputs:
        index[node] = len(index)
        digest.update(f"input {_spec(specs[node])}\n".encode())
        if node in constants:
            digest.update(hashlib.sha256(tensor_bytes(constants[node].tensor)).digest())
    for line in _lines(calls, index, specs):
        digest.update(line.encode())
    digest.update(f"loss %{index[loss]}".encode())
    if recomputed:
        digest.update(f"recomputed {list(recomputed)}".encode())
    return digest.hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order, little-endian (every machine we run on is)."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() == 0:
        return b""
    return bytes(flat.view(torch.uint8).tolist())


def _lines(
    calls: Iterable[fx.Node],
    index: dict[fx.Node, int],
    specs: Mapping[fx.Node, ValueSpec],
) -> Iterable[str]:
    for node in calls:
        arguments = _text((node.args, node.kwargs), index)
        index[node] = len(index)
        spec = _spec(specs[node]) if node in specs else "several"
        yield f"{operator_text(node.target)} {arguments} -> {spec}\n"


def _text(value: Any, index: Mapping[fx.Node, int]) -> str:
    if isinstance(value, fx.Node):
        return _nested(value) if value.op == "get_attr" else f"%{index[value]}"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_text(item, index)}" for key, item in sorted(value.items()))
    if isinstance(value, list | tuple):
        return "(" + ",".join(_text(item, index) for item in value) + ")"
    return repr(value)


def _nested(node: fx.Node) -> str:
    graph = nested_graph(node)
    index: dict[fx.Node, int] = {}
    lines = []
    for inner in graph.graph.nodes:
        if inner.op == "placeholder":
            index[inner] = len(index)
        elif inner.op == "call_function":
            lines += list(_lines([inner], index, {}))
        elif inner.op == "output":
            lines.append(_text(inner.args, index))
    return "{" + "".join(lines) + "}"


def _spec(spec: ValueSpec) -> str:
    return f"{spec.dtype}{list(spec.shape)}{'*' if spec.needs_grad else ''}"
