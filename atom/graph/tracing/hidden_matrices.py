"""Recognition of hidden matrices, which map activations of one layer to the next layer.

A parameter is a *hidden matrix* if it has two dimensions, the model uses it in matrix products
only, and it is not in the last product, which is the output head. An embedding is looked up or
added, so it is not a hidden matrix, whether it is tied to the head or not.

Optimizers that treat a matrix as one linear map (`atom.optim.muon`) apply to hidden matrices. A
matrix that is used inside a nested region (`no_grad`, autocast) is not recognised.
"""

from collections.abc import Container, Iterator, Mapping, Sequence

from torch import fx

PRODUCTS = frozenset({"linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "einsum"})
SAME_MATRIX = frozenset(
    {"t", "transpose", "permute", "numpy_T", "view", "reshape", "contiguous", "to", "_to_copy"}
)
"""Operations that give the same matrix, with its axes in another order or in another dtype."""


def hidden_matrices(calls: Sequence[fx.Node], parameters: Mapping[fx.Node, str]) -> frozenset[str]:
    """Return the names of the hidden matrices of a graph.

    A hidden matrix is a parameter with two dimensions that is used in matrix products only, and not
    in the last one, which is the model's head.

    Args:
        calls: calls of the graph, in order.
        parameters: placeholder → name; tied placeholders have the same name.
    """
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
    """Yield the calls that use a parameter, directly or through `SAME_MATRIX` operations."""
    for user in node.users:
        if user in live and _operation(user) in SAME_MATRIX:
            yield from _uses(user, live)
        elif user in live:
            yield user


def _operation(call: fx.Node) -> str:
    """Return the name of an aten operation, without its overload."""
    return str(getattr(call.target, "overloadpacket", call.target)).removeprefix("aten.")
