"""The class of a sub-model of several layers: it holds theirs and calls them in turn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from torch import fx

from atom.graph.generate.printer import LayerText
from atom.graph.generate.python_text import (
    BODY,
    INDENT,
    assignment,
    identifier,
    returned,
    signature,
    unique,
)
from atom.graph.generate.statements import input_shapes
from atom.graph.layers import Layer
from atom.graph.traced import Graph

_FEWEST_IN_A_LOOP = 3
"""Consecutive layers of one class that are called alike become a list and a loop."""


@dataclass(frozen=True)
class _Member:
    """One layer: how it is called, and what it holds."""

    position: int
    class_name: str
    targets: tuple[str, ...]
    arguments: tuple[str, ...]
    borrowed: tuple[str, ...]
    """Parameters that an earlier member holds, by their names in the layout."""
    own: tuple[tuple[str, str], ...]
    """(attribute in the layer's class, name in the layout)."""

    @property
    def call(self) -> tuple[object, ...]:
        """Equal for members that a loop may call."""
        return self.class_name, self.targets, self.arguments, self.borrowed


class CompositeText:
    """Give it all layers in order, and only then ask for `lines` and `parameters`."""

    def __init__(self, graph: Graph, layers: Sequence[Layer]) -> None:
        self._graph = graph
        self._inputs, self._outputs = crossings(graph, layers)
        self._taken = {"self", "layer"}
        self._local = {
            node: unique(identifier(graph.batch.get(node, "x")), self._taken)
            for node in self._inputs
        }
        reads = ((node, position) for position, layer in enumerate(layers) for node in layer.inputs)
        self._last_reader = {**dict(reads), **dict.fromkeys(self._outputs, len(layers))}
        self._members: list[_Member] = []
        self._owned: set[str] = set()

    def borrowed_by(self, layer: Layer) -> frozenset[str]:
        """The layer's parameters that an earlier layer holds already."""
        names = {self._graph.parameters[node] for node in layer.parameters}
        return frozenset(names & self._owned)

    def add(self, layer: Layer, text: LayerText, class_name: str) -> None:
        """The next layer, printed as `text` with what it borrows left out."""
        position = len(self._members)
        arguments = tuple(self._local[node] for node in layer.inputs)
        for node in layer.inputs:
            if self._last_reader[node] <= position:
                self._taken.discard(self._local[node])  # a name holds its memory
        for node in layer.outputs:
            self._local[node] = unique("x", self._taken)
        targets = tuple(self._local[node] for node in layer.outputs)
        borrowed, own = tuple(text.borrowed), tuple(text.own)
        self._members.append(_Member(position, class_name, targets, arguments, borrowed, own))
        self._owned.update(name for _, name in own)

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """(attribute path, name in the layout), in the class's order."""
        return [
            (path.replace("[", ".").replace("]", ""), name) for name, path in self._paths.items()
        ]

    @property
    def lines(self) -> list[str]:
        arguments = [self._local[node] for node in self._inputs]
        return [
            f"{INDENT}def __init__(self, device: torch.device) -> None:",
            f"{BODY}super().__init__()",
            *(line for members in self._runs for line in _made(members)),
            "",
            *signature("forward", ["self", *arguments]),
            *input_shapes(self._graph, self._inputs, arguments),
            *(line for members in self._runs for line in self._called(members)),
            *returned([self._local[node] for node in self._outputs]),
        ]

    @cached_property
    def _runs(self) -> list[list[_Member]]:
        """Members that a loop calls, and every other one alone."""
        runs = []
        for _, alike in groupby(self._members, lambda member: member.call):
            members = list(alike)
            together = len(members) >= _FEWEST_IN_A_LOOP
            runs += [members] if together else [[member] for member in members]
        return runs

    @cached_property
    def _paths(self) -> dict[str, str]:
        """A parameter's name in the layout → how Python reaches it from the class."""
        return {
            name: f"{_name(members)}{f'[{index}]' if len(members) > 1 else ''}.{attribute}"
            for members in self._runs
            for index, member in enumerate(members)
            for attribute, name in member.own
        }

    def _called(self, members: Sequence[_Member]) -> Iterator[str]:
        first, name = members[0], _name(members)
        arguments = [*first.arguments, *(f"self.{self._paths[name]}" for name in first.borrowed)]
        targets = first.targets if len(first.targets) > 1 else [f"({first.targets[0]},)"]
        if len(members) == 1:
            yield from assignment(targets, f"self.{name}", arguments)
        else:
            yield f"{BODY}for layer in self.{name}:"
            yield from assignment(targets, "layer", arguments, indent=BODY + INDENT)


def _made(members: Sequence[_Member]) -> Iterator[str]:
    class_name, name = members[0].class_name, _name(members)
    if len(members) == 1:
        yield from assignment([f"self.{name}"], class_name, ["device"])
    else:
        items = f"{class_name}(device) for _ in range({len(members)})"
        yield f"{BODY}self.{name} = nn.ModuleList({items})"


def crossings(graph: Graph, layers: Sequence[Layer]) -> tuple[list[fx.Node], list[fx.Node]]:
    """What consecutive layers take from outside, and what others need of them."""
    inside = {node for layer in layers for node in layer.calls}
    inputs = dict.fromkeys(node for layer in layers for node in layer.inputs if node not in inside)
    outputs = [
        node
        for layer in layers
        for node in layer.outputs
        if node is graph.loss
        or any(user in graph.call_set and user not in inside for user in node.users)
    ]
    return list(inputs), outputs


def _name(members: Sequence[_Member]) -> str:
    first, last = members[0].position, members[-1].position
    return f"layer_{first}" if first == last else f"layers_{first}_to_{last}"
