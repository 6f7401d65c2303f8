"""Splitting of matrices that do not fit the device into parts.

A call that reads such a matrix is replaced by several calls, each of which reads some of its rows.
The later steps (cuts, source, costs) treat parts like any other parameters.

* `linear(x, W, b)`: rows of W are columns of the result. The results of the parts are concatenated.
* `embedding(W, indices)`: every part is looked up, with indices clamped to its rows; `where` then
  selects the results of the part that contains the index.

The rows of a part are contiguous in the arena. A part is found by its name
(`atom.graph.ir.part_name`), so the layout does not depend on the parts, which differ between peers.

If the model computes its loss in checkpointed chunks of tokens, the products with the output head
of all chunks are computed before the first chunk, part by part. So each part is loaded once, and no
chunk needs the whole matrix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_arg

from atom.graph.ir import ALIGNMENT_ELEMENTS, part_name
from atom.graph.layers import layers_of
from atom.graph.traced import Graph, arguments_of, bind, storage_of
from atom.graph.tracing.effects import spec_of

Parts = Mapping[str, int]
"""Name of a matrix → number of its parts."""
_aten = torch.ops.aten
_PartOf = Mapping[fx.Node, fx.Node]
"""A matrix, and each bias that is added to its products → one part of it."""


def most_parts(graph: Graph) -> dict[str, int]:
    """Return the largest possible number of parts of each matrix that can be split.

    A matrix can be split if the model uses it in `linear` and `embedding` only. Each part except
    the last one has a multiple of `ALIGNMENT_ELEMENTS` rows, so that it starts at an aligned
    offset.

    Returns:
        Name of the matrix → number of parts.
    """
    uses = _Uses(graph)
    rows = {
        name: graph.specs[node].shape[0]
        for node, name in graph.parameters.items()
        if len(graph.specs[node].shape) == 2
        and all(uses.can_be_cut(call, node) for call in uses.of(node))
    }
    return {name: -(-count // ALIGNMENT_ELEMENTS) for name, count in rows.items()}


def in_parts(graph: Graph, parts: Parts) -> Graph:
    """Return the same model with matrices split into parts; hash and layout stay the same.

    Args:
        graph: the traced model.
        parts: wanted number of parts by matrix; matrices that cannot be split stay whole.
    """
    parts = {name: parts[name] for name in most_parts(graph) if name in parts} if parts else {}
    return _SplitGraph(graph, parts).finish() if parts else graph


class _Uses:
    """Calls that read a parameter, and the earliest positions to which they can move."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.position = {call: place for place, call in enumerate(graph.calls)}
        self._layer = [n for n, layer in enumerate(layers_of(graph)) for _ in layer.calls]

    def of(self, parameter: fx.Node) -> list[fx.Node]:
        users = (user for user in parameter.users if user in self.position)
        return sorted(users, key=self.position.__getitem__)

    def can_be_cut(self, call: fx.Node, matrix: fx.Node) -> bool:
        if call.target not in (_aten.linear.default, _aten.embedding.default):
            return False
        given = bind(call)
        if [each for each in given.values() if each is matrix] != [given["weight"]]:
            return False
        if not _multiplies(call):
            return call not in self._graph.span_of and not given.get("scale_grad_by_freq")
        return self._bias_is_its_own(given) and self.may_move(call, self.place(call))

    def _bias_is_its_own(self, given: Mapping[str, Any]) -> bool:
        bias = given.get("bias")
        if bias is None:
            return True
        same = {(bind(user).get("weight"), bind(user).get("bias")) for user in self.of(bias)}
        is_alone = bias in self._graph.parameters and same == {(given["weight"], bias)}
        rows = (self._graph.specs[each].shape[0] for each in (bias, given["weight"]))
        return is_alone and len(set(rows)) == 1

    def place(self, call: fx.Node) -> int:
        """Return the position for a call's parts: its own, or the start of its recomputed span."""
        return self._graph.span_of.get(call, (self.position[call],))[0]

    def may_move(self, call: fx.Node, place: int) -> bool:
        """Return True if a call gives the same result at an earlier position of its layer.

        All its arguments must exist there. A cut must be legal there, because then no memory made
        before is changed in place later.
        """
        is_there = all(self.position.get(given, -1) < place for given in arguments_of(call))
        alike = self._layer[place] == self._layer[self.position[call]]
        legal = place not in self._graph.forbidden_cuts
        return place == self.position[call] or (is_there and alike and legal)


class _SplitGraph:
    """Copy of a graph in which calls of whole matrices are replaced by calls of their parts."""

    def __init__(self, graph: Graph, parts: Parts) -> None:
        self._graph, self._uses = graph, _Uses(graph)
        whole = graph.loss.graph
        self._fx = fx.Graph(whole.owning_module)
        self._copy: dict[fx.Node, fx.Node] = {}
        """Node of the original graph → node of this graph."""
        self._fx.graph_copy(whole, self._copy)
        self._specs = {self._copy[n]: spec for n, spec in graph.specs.items() if n in self._copy}
        self._parameters = {self._copy[node]: name for node, name in graph.parameters.items()}
        self._inserted: dict[int, list[fx.Node]] = {}
        """Position in the original graph → new calls, placed right before the call there."""
        self._mode = FakeTensorMode()
        self._results: dict[tuple[Any, ...], torch.Tensor] = {}
        """Fake results in new memory, by operator and forms of the arguments."""
        for node, name in graph.parameters.items():
            if name in parts:
                self._cut(node, parts[name])

    def finish(self) -> Graph:
        graph, same = self._graph, self._copy
        calls, ends = list[fx.Node](), [0]
        for place, call in enumerate(graph.calls):
            calls += [*self._inserted.get(place, []), same[call]]
            ends.append(len(calls))
        glued = (range(*ends[p : p + 2]) for p in graph.forbidden_cuts if p < len(graph.calls))
        return replace(
            graph,
            calls=tuple(calls),
            parameters=self._parameters,
            constants={same[node]: constant for node, constant in graph.constants.items()},
            batch={same[node]: name for node, name in graph.batch.items()},
            loss=same[graph.loss],
            specs=self._specs,
            several={same[node]: specs for node, specs in graph.several.items() if node in same},
            forbidden_cuts=frozenset(position for positions in glued for position in positions),
            # New calls before the first call of a region do not belong to the region.
            recomputed=tuple((ends[first + 1] - 1, ends[end]) for first, end in graph.recomputed),
        )

    def _cut(self, matrix: fx.Node, count: int) -> None:
        spans, uses = _row_ranges(self._graph.specs[matrix].shape[0], count), self._uses.of(matrix)
        whole = {matrix: None, **{bias: None for use in uses if (bias := bind(use).get("bias"))}}
        parts = {each: [self._part(each, *span) for span in spans] for each in whole}
        partial_results = {use: list[fx.Node]() for use in uses}
        for place, together in self._places(uses):
            for number, span in enumerate(spans):
                part_of = {each: rows[number] for each, rows in parts.items()}
                for use in together:
                    compute = self._multiplied if _multiplies(use) else self._looked_up
                    calls = compute(use, part_of, span, partial_results[use])
                    partial_results[use].append(calls[-1])
                    self._inserted.setdefault(place, []).extend(calls)
        for use, results in partial_results.items():
            if _multiplies(use):
                last_axis = len(self._specs[results[0]].shape) - 1
                joined = self._call(use, _aten.cat.default, results, last_axis)
            else:
                joined = results[-1]
                self._inserted[self._uses.position[use]].remove(joined)
            replaced, self._copy[use] = self._copy[use], joined
            replaced.replace_all_uses_with(joined)
            self._fx.erase_node(replaced)

    def _places(self, uses: Sequence[fx.Node]) -> list[tuple[int, list[fx.Node]]]:
        """Return positions with the uses whose parts are computed there, grouped if possible.

        In a group, the first part is computed for all uses, then the second part, and so on.
        """
        found: list[tuple[int, list[fx.Node]]] = []
        for use in uses:
            if found and _multiplies(use) and self._uses.may_move(use, found[-1][0]):
                found[-1][1].append(use)
            else:
                found.append((self._uses.place(use), [use]))
        return found

    def _part(self, whole: fx.Node, begin: int, end: int) -> fx.Node:
        """Add a parameter that consists of some rows of `whole`."""
        name, spec = part_name(self._graph.parameters[whole], begin, end), self._graph.specs[whole]
        assert name not in self._graph.layout.by_name
        self._parameters.pop(self._copy[whole], None)
        node = self._fx.create_node("placeholder", f"{whole.name}_{begin}")
        self._parameters[node] = name
        self._specs[node] = replace(spec, shape=(end - begin, *spec.shape[1:]))
        return node

    def _multiplied(self, use: fx.Node, part_of: _PartOf, *_: Any) -> list[fx.Node]:
        """Add the product with one part of the matrix: some columns of the whole product."""
        given = bind(use)
        matrices = [part_of[given[name]] for name in ("weight", "bias") if given.get(name)]
        return [self._call(use, use.target, self._copy[given["input"]], *matrices)]

    def _looked_up(
        self, use: fx.Node, part_of: _PartOf, rows: tuple[int, int], before: Sequence[fx.Node]
    ) -> list[fx.Node]:
        """Add the look-up in one part, merged with the results of all parts before.

        Indices are clamped at the inner borders of parts only. So an index outside the whole matrix
        fails as it does without parts.
        """
        given, (begin, end) = bind(use), rows
        is_last = end == self._graph.specs[given["weight"]].shape[0]
        bounds = 0 if begin else None, None if is_last else end - begin - 1
        padding = given.get("padding_idx", -1)
        padding = padding - begin if begin <= padding < end else -1
        index = self._call(use, _aten.sub.Tensor, self._copy[given["indices"]], begin)
        clamped = self._call(use, _aten.clamp.default, index, *bounds)
        found = self._call(use, use.target, part_of[given["weight"]], clamped, padding)
        if not before:
            return [index, clamped, found]
        is_reached = self._call(use, _aten.ge.Scalar, index, 0)
        wide = self._call(use, _aten.unsqueeze.default, is_reached, -1)
        result = self._call(use, _aten.where.self, wide, found, before[-1])
        return [index, clamped, found, is_reached, wide, result]

    def _call(self, use: fx.Node, target: Any, *args: Any) -> fx.Node:
        """Add a call that carries the metadata (module path, source line) of the replaced `use`."""
        node = self._fx.create_node("call_function", target, args)
        given: dict[fx.Node, Any] = {each: self._specs[each] for each in arguments_of(node)}
        alike, memory = (target, map_arg(node.args, given.__getitem__)), node.name
        if (result := self._results.get(alike)) is None:
            with self._mode, torch.enable_grad():
                fakes = {each: spec.empty() for each, spec in given.items()}
                result = target(*map_arg(args, fakes.__getitem__))
            memories = {storage_of(fake): given[each].memory for each, fake in fakes.items()}
            memory = memories.get(storage_of(result), node.name)
            if memory == node.name:
                self._results[alike] = result
        node.meta = use.meta | {"val": result}
        self._specs[node] = spec_of(result, {storage_of(result): memory})
        return node


def _multiplies(use: fx.Node) -> bool:
    return bool(use.target == _aten.linear.default)


def _row_ranges(count: int, parts: int) -> list[tuple[int, int]]:
    """Return the row ranges [begin, end) of parts of about equal size.

    Each part except the last one has a multiple of `ALIGNMENT_ELEMENTS` rows.
    """
    blocks = -(-count // ALIGNMENT_ELEMENTS)
    ends = [min(blocks * n // parts * ALIGNMENT_ELEMENTS, count) for n in range(parts + 1)]
    return list(pairwise(ends))
