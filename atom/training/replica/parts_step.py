"""A round's step where the optimizer's state is in parts: what an exchange makes of means, and what
it leaves for the store (`docs/decisions/state-in-parts.md`)."""

import struct
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from atom.optim.clipping import block_squares, norm_of_squares, starts_of_blocks
from atom.optim.optimizer import Optimizer, StepTerms
from atom.optim.state_in_parts import step_aside
from atom.swap.held_state import StateParts
from atom.swap.host_store import HostStore
from atom.swarm.exchange.codec import Codec
from atom.swarm.exchange.encoded import EncodedMean, MeanNumbers
from atom.swarm.exchange.stepping import Made
from atom.swarm.state.arenas import DIGEST_BYTES, describe, state_digest

_SUM = struct.Struct("<d")


class PartsStep:
    """The `PartsWork` of one attempt. Changes nothing of the store.

    A part's row is three digests: of its mean as it travelled, of what is loaded of it, and of the
    rest of its state.
    """

    row_bytes = 3 * DIGEST_BYTES

    def __init__(
        self,
        optimizer: Optimizer,
        store: HostStore,
        codec: Codec,
        terms: Callable[[float], StepTerms],
    ) -> None:
        """`terms`: of the step on a mean of that norm. Raises: ValueError if it is not finite."""
        assert store.held is not None
        self._optimizer, self._store, self._codec, self._terms_of = optimizer, store, codec, terms
        self._parts = store.held.parts
        self.made_bytes = store.working.itemsize
        self.norm = 0.0
        self.means: Mapping[int, EncodedMean] = {}
        """Those that are kept here: also if the exchange broke, after everybody had them."""

    def averaged(self, means: Mapping[int, EncodedMean]) -> None:
        self.means = means

    def sums_bytes(self, part: int) -> int:
        return _SUM.size * len(starts_of_blocks(self._size(part)))

    def sums_of(self, part: int, mean: EncodedMean) -> bytes:
        """The sums of squares of the part's blocks."""
        size = self._size(part)
        squares = block_squares(mean.numbers(self._codec, size), starts_of_blocks(size))
        return b"".join(map(_SUM.pack, squares.values()))

    def decide(self, sums: bytes) -> None:
        """Raises: ValueError for a norm that is not finite."""
        self.norm = norm_of_squares(each for (each,) in _SUM.iter_unpack(sums))
        self._terms = self._terms_of(self.norm)

    def make(self, part: int, mean: EncodedMean) -> tuple[Tensor, bytes]:
        numbers = PartsNumbers(self._parts, {part: mean.numbers(self._codec, self._size(part))})
        aside = step_aside(self._optimizer, self._store, part, numbers, self._terms)
        row = state_digest(mean.arenas), _digest(aside.loaded), state_digest(aside.held)
        return aside.loaded.view(torch.uint8), b"".join(row)

    def is_right(
        self, part: int, row: bytes, mean: EncodedMean | None, made: Tensor | None
    ) -> bool:
        of_mean, of_loaded = row[:DIGEST_BYTES], row[DIGEST_BYTES : 2 * DIGEST_BYTES]
        return (mean is None or state_digest(mean.arenas) == of_mean) and (
            made is None or _digest(made.view(self._store.working.dtype)) == of_loaded
        )

    def decided(self, made: Made) -> "PartsNumbers":
        """What the store is to install, of what an exchange has left here."""
        assert self._store.held is not None
        dtype, held = self._store.working.dtype, self._store.held.held
        means = {part: made.means[part].numbers(self._codec, self._size(part)) for part in held}
        loaded = {part: each.view(dtype) for part, each in made.made.items() if part not in held}
        return PartsNumbers(self._parts, {**means, **loaded})

    def _size(self, part: int) -> int:
        start, stop = self._parts.range(part)
        return stop - start


class PartsNumbers:
    """`FlatNumbers` of parts that lie apart; each slice is within one of them."""

    dtype = torch.float32

    def __init__(self, parts: StateParts, numbers: Mapping[int, MeanNumbers | Tensor]) -> None:
        self._parts, self._numbers = parts, numbers

    def numel(self) -> int:
        return self._parts.elements

    def __getitem__(self, elements: slice) -> Tensor:
        [(part, start, stop)] = self._parts.within(elements.start, elements.stop)
        first = self._parts.range(part)[0]
        return self._numbers[part][start - first : stop - first]


def table_digest(made: Made) -> bytes:
    """The result's: of all parts' rows."""
    rows = torch.frombuffer(bytearray(b"".join(made.rows)), dtype=torch.uint8)
    return state_digest({"rows": rows})


def _digest(loaded: Tensor) -> bytes:
    return describe("", loaded).digest()
