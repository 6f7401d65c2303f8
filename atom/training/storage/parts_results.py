"""What a peer has of the results of rounds, where the optimizer's state is in parts."""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from atom.base.errors import PeerRefused, StorageError
from atom.base.reasons import Reason
from atom.optim.state_in_parts import PartsNumbers
from atom.swap.held_state import HeldState, StateParts
from atom.swap.readiness import StepFailed
from atom.swarm.exchange.codec import Codec
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import Content
from atom.swarm.state.part_rows import LOADED, ROWS, Row, rows_of, table_of
from atom.training.storage.disk import read_tensors
from atom.training.storage.results import KeptResults

_MEAN, _HELD = "mean", "held"
_COPIES = 2
"""Of what is loaded of a part, kept while it is asked for, chunk by chunk."""


@dataclass(frozen=True)
class PartsResult:
    """What a peer has of a round's result. Nobody writes into it any more."""

    rows: tuple[bytes, ...]
    means: Mapping[int, EncodedMean]
    loaded: Mapping[int, Tensor]
    """By part, flat, in the numbers that are loaded."""
    held: Mapping[int, Content] = field(default_factory=dict)
    """Of the parts that this peer is to hold from then on, the rest of their state."""

    @classmethod
    def of(cls, arenas: Content) -> "PartsResult":
        """What a disk gave. Raises: PeerRefused(MALFORMED)."""
        means, held = dict[int, dict[str, Tensor]](), dict[int, dict[str, Tensor]]()
        loaded = dict[int, Tensor]()
        for name, arena in arenas.items():
            kind, _, rest = name.partition(".")
            part, _, within = rest.partition(".")
            if kind in (_MEAN, _HELD) and part.isdecimal():
                (means if kind == _MEAN else held).setdefault(int(part), {})[within] = arena
            elif kind == LOADED and part.isdecimal():
                loaded[int(part)] = arena
            elif name != ROWS:
                raise PeerRefused(Reason.MALFORMED, f"a result of {sorted(arenas)[:4]}")
        whole = {part: EncodedMean.of(each) for part, each in means.items()}
        return cls(rows_of(arenas), whole, loaded, held)

    @property
    def arenas(self) -> Content:
        """By name: as it is saved."""
        means = {part: mean.arenas for part, mean in self.means.items()}
        some = {
            f"{kind}.{part}.{name}": arena
            for kind, of in ((_MEAN, means), (_HELD, self.held))
            for part, arenas in of.items()
            for name, arena in arenas.items()
        }
        loaded = {f"{LOADED}.{part}": arena for part, arena in self.loaded.items()}
        return {**table_of(self.rows), **some, **loaded}

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
            return replace(self, loaded={**self.loaded, part: content[LOADED]})
        return replace(self, means={**self.means, part: EncodedMean.of(content)})

    def numbers(self, codec: Codec, parts: StateParts, held: AbstractSet[int]) -> PartsNumbers:
        """What is installed by a peer that holds these. Raises: PeerRefused(MALFORMED)."""
        means = {part: self.means[part].numbers(codec, parts.size(part)) for part in held}
        others = {part: each for part, each in self.loaded.items() if part not in held}
        return PartsNumbers(parts, {**means, **others})

    def all_loaded(self) -> Tensor:
        """What is loaded of all parts, one after the other; all of it is here."""
        return torch.cat([self.loaded[part] for part in range(len(self.rows))])

    def is_whole(self) -> bool:
        """Whether all that is here has the digests of its row."""
        rows = [*map(Row.of, self.rows)]
        told = [
            *((mean.arenas, rows[part].mean) for part, mean in self.means.items()),
            *(({LOADED: each}, rows[part].loaded) for part, each in self.loaded.items()),
            *((arenas, rows[part].held) for part, arenas in self.held.items()),
        ]
        return all(state_digest(content) == digest for content, digest in told)


class PartsResults(KeptResults[PartsResult]):
    """Of each round as much as this peer needs, or has fetched."""

    def __init__(
        self, folder: Path, held: HeldState, codec: Codec, live: Callable[[int], Tensor]
    ) -> None:
        """`held`: what the peer holds, as it changes. `live`: what is loaded of a part, between two
        steps; may raise StepFailed."""
        super().__init__(folder, held.parts.elements, codec)
        self._state, self.parts, self._live = held, held.parts, live
        self.rows: tuple[bytes, ...] = ()
        """Of the state that is here; empty: it is the first. One writer; for any thread to read."""
        self._means: dict[bytes, EncodedMean] = {}
        """Of exchanges that broke."""
        self._copies: dict[bytes, Content] = {}

    def _read(self, arenas: Content) -> PartsResult:
        return PartsResult.of(arenas)

    def _is(self, result: PartsResult, digest: bytes) -> bool:
        fits = len(result.rows) == self.parts.count and result.digest == digest
        return fits and result.is_whole()

    @property
    def usual_bytes(self) -> int:
        return self.codec.wire_bytes(self.elements) + self.elements * self._live(0).itemsize

    def of(self, digest: bytes) -> PartsResult:
        """A held one."""
        return self._held[digest]

    def keep_means(self, means: Mapping[int, EncodedMean]) -> None:
        """Those of an exchange that broke, until `keep`: its result may be committed."""
        named = {state_digest(mean.arenas): mean for mean in means.values()}
        with self._lock:
            self._means |= named

    def keep(self, digests: AbstractSet[bytes]) -> None:
        super().keep(digests)
        if not digests:
            with self._lock:
                self._means, self._copies = {}, {}

    def numbers(self, digest: bytes) -> PartsNumbers:
        """What is installed by a peer that holds what this one does. Raises: PeerRefused."""
        return self.of(digest).numbers(self.codec, self.parts, self._state.held)

    def check(self, digest: bytes) -> None:
        result = self.of(digest)
        for part, mean in result.means.items():
            mean.check(self.codec, self.parts.size(part))
        wanted = {part: (self._live(part).dtype, self.parts.size(part)) for part in result.loaded}
        if wanted != {part: (each.dtype, each.numel()) for part, each in result.loaded.items()}:
            raise PeerRefused(Reason.MALFORMED, "weights of another size")

    def fetch(self, digest: bytes, ask: Callable[[bytes], Content]) -> None:
        """As much as a peer needs that holds what this one does. Instead of a mean that is nowhere:
        what is loaded of that part."""
        self._fetch(digest, ask, self._state.held)

    def fetch_loaded(self, digest: bytes, ask: Callable[[bytes], Content]) -> None:
        """The same, for a peer that holds nothing."""
        self._fetch(digest, ask, frozenset())

    def _fetch(
        self, digest: bytes, ask: Callable[[bytes], Content], held: AbstractSet[int]
    ) -> None:
        result = self.get(digest) or PartsResult(rows_of(ask(digest)), {}, {})
        if len(result.rows) != self.parts.count:
            raise PeerRefused(Reason.MALFORMED, f"a table of {len(result.rows)} rows")
        for part, wanted in result.lacking(held).items():
            loaded = Row.of(result.rows[part]).loaded
            mean = self._means.get(wanted)
            with suppress(*(() if wanted == loaded else (PeerRefused, OSError))):
                result = result.with_content(part, mean.arenas if mean else ask(wanted))
                continue
            if part not in result.loaded:
                result = result.with_content(part, ask(loaded))
        self.hold(digest, result)

    def served(self, digest: bytes) -> Content | None:
        """A table, a mean or what is loaded of a part: from memory, else from disk."""
        rows = self.rows
        if rows and digest == state_digest(table_of(rows)):
            return table_of(rows)
        for part, row in enumerate(map(Row.of, rows)):
            if row.loaded == digest and (found := self._copied(part, digest)) is not None:
                return found
        for result in chain(list(self._held.values()), self._all_stored()):
            if (content := result.served(digest)) is not None:
                return content
        return None

    def _copied(self, part: int, digest: bytes) -> Content | None:
        """What is loaded of a part, unless a step has begun since."""
        if (copy := self._copies.get(digest)) is not None:
            return copy
        with suppress(StepFailed):
            copy = {LOADED: self._live(part).clone()}
            if state_digest(copy) == digest:
                with self._lock:
                    self._copies = dict([*self._copies.items(), (digest, copy)][-_COPIES:])
                return copy
        return None

    def _all_stored(self) -> Iterator[PartsResult]:
        for path in self.folder.glob("*.safetensors"):
            with suppress(StorageError, PeerRefused):
                yield PartsResult.of(read_tensors(path))
