"""The reference: recursive exhaustive search over every legal cut, after the paper's Algorithm 1.

The first sub-model grows operation by operation for as long as it fits; for each of its sizes the
rest is searched in the same way, and the best complete cut is kept. The paper refuses a cut in
which computing does not cover a load; here what is not covered is charged as the time it takes, so
that a slow link still has a best answer. Exponential in operations.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from atom.graph.chain import Chain, Machine
from atom.plan.cuts import Ends
from atom.plan.memory import Cut, Limits, Piece, piece_of


def algorithm_one(
    chain: Chain, machine: Machine, limits: Limits, fits: Callable[[Piece], bool]
) -> Ends:
    """The cut into sub-models that fit, one by one, for which a pass is charged least."""
    found = _completions(chain, 0, fits)
    return min(found, key=lambda ends: charged_s(chain, machine, limits, ends))


def _completions(chain: Chain, begin: int, fits: Callable[[Piece], bool]) -> Iterator[Ends]:
    count = len(chain.operations)
    if begin == count:
        yield ()
    for end in range(begin + 1, count + 1):
        if not fits(piece_of(chain.operations[begin:end])):
            return
        if end not in chain.forbidden:
            yield from ((end, *rest) for rest in _completions(chain, end, fits))


def charged_s(chain: Chain, machine: Machine, limits: Limits, ends: Sequence[int]) -> float:
    """Return the cost of a cut, straight from the formula of `atom.plan.cuts`."""
    pieces = Cut.of(chain, machine, limits, ends).pieces
    forward = [limits.micro_batches * piece.forward_s for piece in pieces]
    backward = [limits.micro_batches * piece.backward_s for piece in pieces]
    again = [f + b for f, b in zip(forward, backward, strict=True)]
    load = [p.elements * limits.element_bytes / machine.load_bytes_per_s for p in pieces]
    out = [p.elements * limits.gradient_element_bytes for p in pieces]
    out = [size / machine.gradient_bytes_per_s for size in out]
    seconds = load[0] + out[0] + again[-1] + sum(forward[:-1]) + sum(again[:-1])
    for s, following in pairwise(range(len(pieces))):
        seconds += max(0.0, load[following] - forward[s])
        seconds += max(0.0, out[following] - again[s])
        if following < len(pieces) - 1:
            seconds += max(0.0, load[s] - again[following])
    kept = sum(crossing.value_bytes for piece in pieces for crossing in piece.crossings)
    return seconds + kept / machine.load_bytes_per_s
