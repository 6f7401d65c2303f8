"""The reference: recursive exhaustive search over every legal cut, after the paper's Algorithm 1.

The first sub-model grows operation by operation for as long as it fits; for each of its sizes the
rest is searched in the same way, and the best complete cut is kept. The paper refuses a cut in
which computing does not cover a load; here what is not covered is charged as the time it takes, so
that a slow link still has a best answer. Exponential in operations.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from atom.graph.chain import Chain
from atom.placement.cuts import Charges, Ends
from atom.placement.memory import Piece, piece_of, pieces_of


def algorithm_one(chain: Chain, charges: Charges, fits: Callable[[Piece], bool]) -> Ends | None:
    """The cut into sub-models that fit, one by one, for which a pass is charged least."""
    found = ((charged_s(chain, charges, ends), ends) for ends in _completions(chain, 0, fits))
    return min(found, default=(0.0, None))[1]


def _completions(chain: Chain, begin: int, fits: Callable[[Piece], bool]) -> Iterator[Ends]:
    count = len(chain.operations)
    if begin == count:
        yield ()
    for end in range(begin + 1, count + 1):
        if not fits(piece_of(chain.operations[begin:end])):
            return
        if end not in chain.forbidden:
            yield from ((end, *rest) for rest in _completions(chain, end, fits))


def charged_s(chain: Chain, charges: Charges, ends: Sequence[int]) -> float:
    """Of a pass with this cut, straight from the definitions."""
    pieces = pieces_of(chain, ends)
    forward = [charges.micro_batches * piece.forward_s for piece in pieces]
    backward = [charges.micro_batches * piece.backward_s for piece in pieces]
    again = [f + b for f, b in zip(forward, backward, strict=True)]
    load = [piece.elements * charges.load_s for piece in pieces]
    out = [piece.elements * charges.gradient_s for piece in pieces]
    seconds = load[0] + out[0] + again[-1] + sum(forward[:-1]) + sum(again[:-1])
    for s, following in pairwise(range(len(pieces))):
        seconds += max(0.0, load[following] - forward[s])
        seconds += max(0.0, out[following] - again[s])
        if following < len(pieces) - 1:
            seconds += max(0.0, load[s] - again[following])
    kept = sum(crossing.value_bytes for piece in pieces for crossing in piece.crossings)
    return seconds + charges.kept_s * kept
