"""Matrices that fit no device, in parts: a call that takes such a matrix becomes several, each with
some of its rows. What comes behind (cuts, source, costs) sees parameters like any other.

* `linear(x, W, b)`: rows of W are columns of what it gives. What the parts give is concatenated.
* `embedding(W, indices)`: each part is looked up in, at a row that it has, and the right one taken.

Rows are one stretch of the arena. So the arenas know nothing of parts, which differ from peer to
peer: a part is found by its name (`atom.graph.ir.part_name`).

A head whose loss the model computes in checkpointed chunks of tokens is multiplied by before them
all, part by part: each is loaded once, and no chunk needs all of them.
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
"""Name of a matrix → into how many parts it is cut."""
_aten = torch.ops.aten
_Mine = Mapping[fx.Node, fx.Node]
"""A matrix and its biases → a part of each."""


def most_parts(graph: Graph) -> dict[str, int]:
    """The matrices that can be cut: the model multiplies by them or looks up in them, and no more.
    Parts have a multiple of `ALIGNMENT_ELEMENTS` rows: they begin where parameters may."""
    uses = _Uses(graph)
    rows = {
        name: graph.specs[node].shape[0]
        for node, name in graph.parameters.items()
        if len(graph.specs[node].shape) == 2
        and all(uses.can_be_cut(call, node) for call in uses.of(node))
    }
    return {name: -(-count // ALIGNMENT_ELEMENTS) for name, count in rows.items()}


def in_parts(graph: Graph, parts: Parts) -> Graph:
    """The same model, with those of these matrices cut that can be. It keeps its hash and its
    layout."""
    parts = {name: parts[name] for name in most_parts(graph) if name in parts} if parts else {}
    return _InParts(graph, parts).finish() if parts else graph


class _Uses:
    """The calls that take a parameter, and how early they may be made."""

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
        """Where its parts are computed: where it is, or before the region that it is in."""
        return self._graph.span_of.get(call, (self.position[call],))[0]

    def may_move(self, call: fx.Node, place: int) -> bool:
        """Whether it gives the same at an earlier place of its layer: what it takes is there and,
        where a cut would be legal, not changed later."""
        is_there = all(self.position.get(given, -1) < place for given in arguments_of(call))
        alike = self._layer[place] == self._layer[self.position[call]]
        legal = place not in self._graph.forbidden_cuts
        return place == self.position[call] or (is_there and alike and legal)


class _InParts:
    """A copy of the graph, with parts in the place of calls."""

    def __init__(self, graph: Graph, parts: Parts) -> None:
        self._graph, self._uses = graph, _Uses(graph)
        whole = graph.loss.graph
        self._fx = fx.Graph(whole.owning_module)
        self._same: dict[fx.Node, fx.Node] = {}
        """What stands here for a node there."""
        self._fx.graph_copy(whole, self._same)
        self._specs = {self._same[n]: spec for n, spec in graph.specs.items() if n in self._same}
        self._parameters = {self._same[node]: name for node, name in graph.parameters.items()}
        self._before: dict[int, list[fx.Node]] = {}
        """By position, what is computed right before the call there."""
        self._mode = FakeTensorMode()
        self._fresh: dict[tuple[Any, ...], torch.Tensor] = {}
        """What calls give that take what looks alike, where it lies in memory of its own."""
        for node, name in graph.parameters.items():
            if name in parts:
                self._cut(node, parts[name])

    def finish(self) -> Graph:
        graph, same = self._graph, self._same
        calls, ends = list[fx.Node](), [0]
        for place, call in enumerate(graph.calls):
            calls += [*self._before.get(place, []), same[call]]
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
            # What is computed before a region is no part of it.
            recomputed=tuple((ends[first + 1] - 1, ends[end]) for first, end in graph.recomputed),
        )

    def _cut(self, matrix: fx.Node, count: int) -> None:
        spans, uses = _rows(self._graph.specs[matrix].shape[0], count), self._uses.of(matrix)
        whole = {matrix: None, **{bias: None for use in uses if (bias := bind(use).get("bias"))}}
        parts = {each: [self._part(each, *span) for span in spans] for each in whole}
        made = {use: list[fx.Node]() for use in uses}
        for place, together in self._places(uses):
            for number, span in enumerate(spans):
                mine = {each: rows[number] for each, rows in parts.items()}
                for use in together:
                    compute = self._multiplied if _multiplies(use) else self._looked_up
                    calls = compute(use, mine, span, made[use])
                    made[use].append(calls[-1])
                    self._before.setdefault(place, []).extend(calls)
        for use, results in made.items():
            if _multiplies(use):
                last_axis = len(self._specs[results[0]].shape) - 1
                joined = self._call(use, _aten.cat.default, results, last_axis)
            else:
                joined = results[-1]
                self._before[self._uses.position[use]].remove(joined)
            replaced, self._same[use] = self._same[use], joined
            replaced.replace_all_uses_with(joined)
            self._fx.erase_node(replaced)

    def _places(self, uses: Sequence[fx.Node]) -> list[tuple[int, list[fx.Node]]]:
        """Positions, and the uses whose parts are computed there: part by part, of all of them."""
        found: list[tuple[int, list[fx.Node]]] = []
        for use in uses:
            if found and _multiplies(use) and self._uses.may_move(use, found[-1][0]):
                found[-1][1].append(use)
            else:
                found.append((self._uses.place(use), [use]))
        return found

    def _part(self, whole: fx.Node, begin: int, end: int) -> fx.Node:
        """A parameter that is some rows of another."""
        name, spec = part_name(self._graph.parameters[whole], begin, end), self._graph.specs[whole]
        assert name not in self._graph.layout.by_name
        self._parameters.pop(self._same[whole], None)
        node = self._fx.create_node("placeholder", f"{whole.name}_{begin}")
        self._parameters[node] = name
        self._specs[node] = replace(spec, shape=(end - begin, *spec.shape[1:]))
        return node

    def _multiplied(self, use: fx.Node, mine: _Mine, *_: Any) -> list[fx.Node]:
        """Some columns of the product."""
        given = bind(use)
        matrices = [mine[given[name]] for name in ("weight", "bias") if given.get(name)]
        return [self._call(use, use.target, self._same[given["input"]], *matrices)]

    def _looked_up(
        self, use: fx.Node, mine: _Mine, rows: tuple[int, int], before: Sequence[fx.Node]
    ) -> list[fx.Node]:
        """What is looked up in the parts so far. An index that no part has fails as it does in the
        whole."""
        given, (begin, end) = bind(use), rows
        is_last = end == self._graph.specs[given["weight"]].shape[0]
        bounds = 0 if begin else None, None if is_last else end - begin - 1
        padding = given.get("padding_idx", -1)
        padding = padding - begin if begin <= padding < end else -1
        index = self._call(use, _aten.sub.Tensor, self._same[given["indices"]], begin)
        here = self._call(use, _aten.clamp.default, index, *bounds)
        found = self._call(use, use.target, mine[given["weight"]], here, padding)
        if not before:
            return [index, here, found]
        has = self._call(use, _aten.ge.Scalar, index, 0)
        wide = self._call(use, _aten.unsqueeze.default, has, -1)
        result = self._call(use, _aten.where.self, wide, found, before[-1])
        return [index, here, found, has, wide, result]

    def _call(self, use: fx.Node, target: Any, *args: Any) -> fx.Node:
        """A new call, made where the use was."""
        node = self._fx.create_node("call_function", target, args)
        given: dict[fx.Node, Any] = {each: self._specs[each] for each in arguments_of(node)}
        alike, memory = (target, map_arg(node.args, given.__getitem__)), node.name
        if (result := self._fresh.get(alike)) is None:
            with self._mode, torch.enable_grad():
                fakes = {each: spec.empty() for each, spec in given.items()}
                result = target(*map_arg(args, fakes.__getitem__))
            memories = {storage_of(fake): given[each].memory for each, fake in fakes.items()}
            memory = memories.get(storage_of(result), node.name)
            if memory == node.name:
                self._fresh[alike] = result
        node.meta = use.meta | {"val": result}
        self._specs[node] = spec_of(result, {storage_of(result): memory})
        return node


def _multiplies(use: fx.Node) -> bool:
    return bool(use.target == _aten.linear.default)


def _rows(count: int, parts: int) -> list[tuple[int, int]]:
    """Of parts of about equal size, each a multiple of `ALIGNMENT_ELEMENTS` but the last."""
    blocks = -(-count // ALIGNMENT_ELEMENTS)
    ends = [min(blocks * n // parts * ALIGNMENT_ELEMENTS, count) for n in range(parts + 1)]
    return list(pairwise(ends))
