"""What backward computes again, as a method of its layer's class that runs under a checkpoint.

The method's names come from its own calls and arguments, so spans that compute the same (chunks of
a loss) are one method, called several times.
"""

from collections.abc import Sequence

from torch import fx

from atom.graph.generate.python_text import BODY, identifier, returned, signature
from atom.graph.generate.statements import Statements, input_shapes
from atom.graph.layers import Layer
from atom.graph.traced import Graph, is_getitem, repeats, with_nested


class RecomputedText:
    """The method for one span of calls. `reached` says which values are the class's attributes."""

    def __init__(
        self, graph: Graph, layer: Layer, calls: Sequence[fx.Node], reached: dict[fx.Node, str]
    ) -> None:
        inside = set(calls)
        self.gives = [node for node in calls if _is_used_outside(node, graph, inside)]
        read = dict.fromkeys(
            node
            for call in calls
            for node in call.all_input_nodes
            if node not in inside and node.op != "get_attr"
        )
        passed = [node for node in read if not reached[node].startswith("self.")]
        values = [node for node in passed if node not in graph.parameters]
        self.takes = [*values, *(node for node in passed if node in graph.parameters)]
        """Values, then parameters that the class has not itself."""
        self.is_random = not all(repeats(inner) for call in calls for inner in with_nested(call))
        text = Statements(graph, layer, calls, self.gives)
        text.names.update({node: reached[node] for node in read if node not in passed})
        arguments = [text.take(node, _wanted(graph, text, node)) for node in self.takes]
        self._arguments = arguments
        self._body = [
            f'{BODY}"""Backward computes this again."""',
            *input_shapes(graph, values, arguments),
            *text.lines(calls, BODY),
            *returned([text.names[node] for node in self.gives]),
        ]

    @property
    def key(self) -> str:
        """Equal for spans that may share a method."""
        return "\n".join([*self._arguments, *self._body])

    def lines(self, name: str) -> list[str]:
        """The method's, under this name."""
        return [*signature(name, ["self", *self._arguments]), *self._body]


def _wanted(graph: Graph, text: Statements, node: fx.Node) -> str:
    if node in graph.parameters:
        return identifier(text.relative(graph.parameters[node]))
    if node in graph.batch:
        return identifier(graph.batch[node])
    return text.called_after(node.all_input_nodes[0] if is_getitem(node) else node)


def _is_used_outside(node: fx.Node, graph: Graph, inside: set[fx.Node]) -> bool:
    return node is graph.loss or any(u in graph.call_set and u not in inside for u in node.users)
