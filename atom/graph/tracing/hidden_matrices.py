"""Which matrices map one layer's activations to the next one's: by what a graph does with them.

A parameter is a *hidden matrix* if it has two dimensions, all that the model does with it is to
multiply by it, and it is not the last one multiplied by: that is the output head. An embedding is
looked up in or added, so it is none, tied to the head or not.

Optimizers that treat a matrix as one linear map (`atom.optim.muon`) take these. A matrix that is
used within a region of its own (`no_grad`, autocast) is not recognised.
"""

from collections.abc import Container, Iterator, Mapping, Sequence

from torch import fx

PRODUCTS = frozenset({"linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "einsum"})
SAME_MATRIX = frozenset(
    {"t", "transpose", "permute", "numpy_T", "view", "reshape", "contiguous", "to", "_to_copy"}
)
"""What gives the same matrix: its axes in another order, or its numbers in another type."""


def hidden_matrices(calls: Sequence[fx.Node], parameters: Mapping[fx.Node, str]) -> frozenset[str]:
    """`calls`: of a graph, in order. `parameters`: placeholder → name; tied ones share a name."""
    live = set(calls)
    uses: dict[str, list[fx.Node]] = {}
    for node, name in parameters.items():
        uses.setdefault(name, []).extend(_uses(node, live))
    flat = {name for node, name in parameters.items() if node.meta["val"].dim() != 2}
    multiplied = [name for name in uses if all(map(_is_product, uses[name]))]
    position = {node: place for place, node in enumerate(calls)}
    last = {
        name: max((position[node] for node in uses[name] if _is_product(node)), default=-1)
        for name in uses.keys() - flat
    }
    head = max(last, key=last.__getitem__, default="")
    return frozenset(multiplied) - flat - {head}


def _uses(node: fx.Node, live: Container[fx.Node]) -> Iterator[fx.Node]:
    """The calls that take a parameter, whichever way its axes lie."""
    for user in node.users:
        if user in live:
            if _operation(user) in SAME_MATRIX:
                yield from _uses(user, live)
            else:
                yield user


def _is_product(call: fx.Node) -> bool:
    return _operation(call) in PRODUCTS


def _operation(call: fx.Node) -> str:
    """The name of an aten operation, without its overload."""
    return str(getattr(call.target, "overloadpacket", call.target)).removeprefix("aten.")
