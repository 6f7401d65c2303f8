"""A round's step where the optimizer's state is in parts: what an exchange makes of means, and what
stays of it (`docs/decisions/state-in-parts.md`).

A part's row is three digests of contents: of its mean as it travelled, of what is loaded of it, and
of the rest of its state. A round's result is named by the digest of all rows. So it names the next
state; and whoever lacks a part of a result, or of a state, can fetch that by its digest.
"""

import struct
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.optim.clipping import block_squares, norm_of_squares, starts_of_blocks
from atom.optim.optimizer import Optimizer, StepTerms
from atom.optim.state_in_parts import step_aside
from atom.swap.held_state import StateParts
from atom.swap.host_store import HostStore
from atom.swarm.exchange.codec import Codec
from atom.swarm.exchange.encoded import EncodedMean, MeanNumbers
from atom.swarm.exchange.stepping import Made
from atom.swarm.state.arenas import DIGEST_BYTES, state_digest

ROWS, LOADED = "rows", "loaded"
_MEAN = "mean"
_SUM = struct.Struct("<d")
Content = Mapping[str, Tensor]


@dataclass(frozen=True)
class Row:
    """Of one part: digests of contents."""

    mean: bytes
    loaded: bytes
    held: bytes
    """Of its state after the round, but for what is loaded."""

    @classmethod
    def of(cls, raw: bytes) -> "Row":
        return cls(*(raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)))

    @property
    def raw(self) -> bytes:
        return self.mean + self.loaded + self.held


ROW_BYTES = 3 * DIGEST_BYTES


class PartsStep:
    """The `PartsWork` of one attempt. Changes nothing of the store."""

    row_bytes = ROW_BYTES

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
        return _SUM.size * len(starts_of_blocks(self._parts.size(part)))

    def sums_of(self, part: int, mean: EncodedMean) -> bytes:
        """The sums of squares of the part's blocks."""
        size = self._parts.size(part)
        squares = block_squares(mean.numbers(self._codec, size), starts_of_blocks(size))
        return b"".join(map(_SUM.pack, squares.values()))

    def decide(self, sums: bytes) -> None:
        """Raises: ValueError for a norm that is not finite."""
        self.norm = norm_of_squares(each for (each,) in _SUM.iter_unpack(sums))
        self._terms = self._terms_of(self.norm)

    def make(self, part: int, mean: EncodedMean) -> tuple[Tensor, bytes]:
        numbers = PartsNumbers(
            self._parts, {part: mean.numbers(self._codec, self._parts.size(part))}
        )
        aside = step_aside(self._optimizer, self._store, part, numbers, self._terms)
        loaded, held = state_digest({LOADED: aside.loaded}), state_digest(aside.held)
        return aside.loaded.view(torch.uint8), Row(state_digest(mean.arenas), loaded, held).raw

    def is_right(
        self, part: int, row: bytes, mean: EncodedMean | None, made: Tensor | None
    ) -> bool:
        told = Row.of(row)
        return (mean is None or state_digest(mean.arenas) == told.mean) and (
            made is None or state_digest({LOADED: self._loaded(made)}) == told.loaded
        )

    def result(self, made: Made) -> "PartsResult":
        """Of an exchange that ended well."""
        loaded = {part: self._loaded(each) for part, each in made.made.items()}
        return PartsResult(made.rows, made.means, loaded)

    def _loaded(self, made: Tensor) -> Tensor:
        return made.view(self._store.working.dtype)


@dataclass(frozen=True)
class PartsResult:
    """What a peer has of a round's result. Nobody writes into it any more."""

    rows: tuple[bytes, ...]
    means: Mapping[int, EncodedMean]
    loaded: Mapping[int, Tensor]
    """By part, flat, in the numbers that are loaded."""

    @classmethod
    def of(cls, arenas: Content) -> "PartsResult":
        """What a disk gave. Raises: PeerRefused(MALFORMED)."""
        means, loaded = dict[int, dict[str, Tensor]](), dict[int, Tensor]()
        for name, arena in arenas.items():
            kind, _, rest = name.partition(".")
            part, _, of_mean = rest.partition(".")
            if kind == _MEAN and part.isdecimal():
                means.setdefault(int(part), {})[of_mean] = arena
            elif kind == LOADED and part.isdecimal():
                loaded[int(part)] = arena
            elif name != ROWS:
                raise PeerRefused(Reason.MALFORMED, f"a result of {sorted(arenas)[:4]}")
        whole = {part: EncodedMean.of(each) for part, each in means.items()}
        return cls(rows_of(arenas), whole, loaded)

    @property
    def arenas(self) -> Content:
        """By name: as it is saved."""
        means = {
            f"{_MEAN}.{part}.{name}": arena
            for part, mean in self.means.items()
            for name, arena in mean.arenas.items()
        }
        loaded = {f"{LOADED}.{part}": arena for part, arena in self.loaded.items()}
        return {**table_of(self.rows), **means, **loaded}

    @property
    def digest(self) -> bytes:
        """Its name in a commit."""
        return state_digest(table_of(self.rows))

    def served(self, digest: bytes) -> Content | None:
        """What of it has that digest."""
        if digest == self.digest:
            return table_of(self.rows)
        for part, row in enumerate(map(Row.of, self.rows)):
            if digest == row.mean and part in self.means:
                return self.means[part].arenas
            if digest == row.loaded and part in self.loaded:
                return {LOADED: self.loaded[part]}
        return None

    def lacking(self, held: AbstractSet[int]) -> dict[int, bytes]:
        """By part the digest of what a peer that holds these needs to take the step."""
        rows = [*map(Row.of, self.rows)]
        means = {part: rows[part].mean for part in held if part not in self.means}
        others = set(range(len(rows))) - held - self.loaded.keys()
        return means | {part: rows[part].loaded for part in others}

    def with_content(self, part: int, content: Content) -> "PartsResult":
        """With what was fetched of a part. Raises: PeerRefused(MALFORMED)."""
        if content.keys() == {LOADED}:
            return PartsResult(self.rows, self.means, {**self.loaded, part: content[LOADED]})
        means = {**self.means, part: EncodedMean.of(content)}
        return PartsResult(self.rows, means, self.loaded)

    def numbers(self, codec: Codec, parts: StateParts, held: AbstractSet[int]) -> "PartsNumbers":
        """What is installed by a peer that holds these. Raises: PeerRefused(MALFORMED)."""
        means = {part: self.means[part].numbers(codec, parts.size(part)) for part in held}
        others = {part: each for part, each in self.loaded.items() if part not in held}
        if any(each.numel() != parts.size(part) for part, each in others.items()):
            raise PeerRefused(Reason.MALFORMED, "weights of another size")
        return PartsNumbers(parts, {**means, **others})


class PartsNumbers:
    """`FlatNumbers` of parts that lie apart; each slice is within one of them. A part's mean, or
    what is loaded of it."""

    dtype = torch.float32

    def __init__(self, parts: StateParts, numbers: Mapping[int, MeanNumbers | Tensor]) -> None:
        self._parts, self._numbers = parts, numbers

    def numel(self) -> int:
        return self._parts.elements

    def __getitem__(self, elements: slice) -> Tensor:
        [(part, start, stop)] = self._parts.within(elements.start, elements.stop)
        first = self._parts.range(part)[0]
        return self._numbers[part][start - first : stop - first]


def table_of(rows: tuple[bytes, ...]) -> Content:
    return {ROWS: torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)}


def rows_of(table: Content) -> tuple[bytes, ...]:
    """Raises: PeerRefused(MALFORMED)."""
    rows = table.get(ROWS)
    if rows is None or rows.dtype != torch.uint8 or not rows.numel() or rows.numel() % ROW_BYTES:
        raise PeerRefused(Reason.MALFORMED, "a table of no rows")
    raw = rows.numpy().tobytes()
    return tuple(raw[at : at + ROW_BYTES] for at in range(0, len(raw), ROW_BYTES))
