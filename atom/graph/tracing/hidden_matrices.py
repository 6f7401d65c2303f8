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
    position = {call: place for place, call in enumerate(calls)}
    uses: dict[str, list[fx.Node]] = {}
    for node, name in parameters.items():
        if node.meta["val"].dim() == 2:
            uses.setdefault(name, []).extend(_uses(node, position))
    products = {use for each in uses.values() for use in each if _operation(use) in PRODUCTS}
    last = max(products, key=position.__getitem__, default=None)
    return frozenset(
        n for n, each in uses.items() if products.issuperset(each) and last not in each
    )


def _uses(node: fx.Node, live: Container[fx.Node]) -> Iterator[fx.Node]:
    """The calls that take a parameter, whichever way its axes lie."""
    for user in node.users:
        if user in live and _operation(user) in SAME_MATRIX:
            yield from _uses(user, live)
        elif user in live:
            yield user


def _operation(call: fx.Node) -> str:
    """The name of an aten operation, without its overload."""
    return str(getattr(call.target, "overloadpacket", call.target)).removeprefix("aten.")
