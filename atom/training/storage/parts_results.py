"""What a peer has of the results of rounds, where the optimizer's state is in parts."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from atom.base.errors import PeerRefused, StorageError
from atom.base.files import remove_leftover
from atom.base.reasons import Reason
from atom.optim.state_in_parts import PartsNumbers
from atom.swap.held_state import HeldState, StateParts
from atom.swap.readiness import StepFailed
from atom.swarm.exchange.codec import Codec
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import Content
from atom.swarm.state.part_rows import LOADED, Row, rows_of, table_of
from atom.training.storage.disk import read_tensors, write_tensors
from atom.training.storage.results import KeptResults

MOST_IN_PARTS = 3
"""So many rounds a peer goes back, or is behind, and still holds what it held."""
_COPIES = 2
"""Of what is loaded of a part, kept while it is asked for, chunk by chunk."""


@dataclass(frozen=True)
class PartsResult:
    """What a peer has of a round's result. Nobody writes into it any more."""

    rows: tuple[Row, ...]
    means: Mapping[int, EncodedMean] = field(default_factory=dict)
    loaded: Mapping[int, Tensor] = field(default_factory=dict)
    """By part, flat, in the numbers that are loaded."""
    held: Mapping[int, Content] = field(default_factory=dict)
    """Of the parts that this peer is to hold from then on, the rest of their state."""

    @property
    def digest(self) -> bytes:
        """Its name in a commit."""
        return state_digest(table_of(self.rows))

    @property
    def contents(self) -> dict[bytes, Content]:
        """All of it, by digest."""
        rows = self.rows
        return {
            self.digest: table_of(rows),
            **{rows[part].mean: mean.arenas for part, mean in self.means.items()},
            **{rows[part].loaded: {LOADED: each} for part, each in self.loaded.items()},
            **{rows[part].held: each for part, each in self.held.items()},
        }

    def lacking(self, held: AbstractSet[int]) -> dict[int, bytes]:
        """By part the digest of what a peer that holds these needs to take the step."""
        rows = self.rows
        means = {part: rows[part].mean for part in held if part not in self.means}
        others = set(range(len(rows))) - held - self.loaded.keys()
        return means | {part: rows[part].loaded for part in others}

    def with_content(self, part: int, digest: bytes, content: Content) -> "PartsResult":
        """With what has that digest in the part's row. Raises: PeerRefused(MALFORMED)."""
        row = self.rows[part]
        if digest == row.mean:
            return replace(self, means={**self.means, part: EncodedMean.of(content)})
        if digest == row.held:
            return replace(self, held={**self.held, part: content})
        if content.keys() != {LOADED}:
            raise PeerRefused(Reason.MALFORMED, f"weights of {sorted(content)[:4]}")
        return replace(self, loaded={**self.loaded, part: content[LOADED]})

    def numbers(self, codec: Codec, parts: StateParts, held: AbstractSet[int]) -> PartsNumbers:
        """What is installed by a peer that holds these. Raises: PeerRefused(MALFORMED)."""
        means = {part: self.means[part].numbers(codec, parts.size(part)) for part in held}
        others = {part: each for part, each in self.loaded.items() if part not in held}
        return PartsNumbers(parts, {**means, **others})

    def all_loaded(self) -> Tensor:
        """What is loaded of all parts, one after the other; all of it is here."""
        return torch.cat([self.loaded[part] for part in range(len(self.rows))])


class PartsResults(KeptResults[PartsResult]):
    """Of each round as much as this peer needs, or has fetched. On disk a table, a mean, or what is
    loaded or held of a part is a file of its own, named by its digest."""

    def __init__(
        self, folder: Path, held: HeldState, codec: Codec, live: Callable[[int], Tensor]
    ) -> None:
        """`held`: what the peer holds, as it changes. `live`: what is loaded of a part, between two
        steps; may raise StepFailed."""
        super().__init__(folder, held.parts.elements, codec)
        self._state, self.parts, self._live = held, held.parts, live
        self.rows: tuple[Row, ...] = ()
        """Of the state that is here; empty: it is the first. One writer; for any thread to read."""
        self._undecided = set[bytes]()
        """Means on disk that no result names yet."""
        self._left: AbstractSet[Path] = frozenset()
        """What was on disk at the start and no result named, until the peer has gone on for so long
        that it would not go back: of a round that others decided it may have the only means."""
        self._pruned = 0
        self._copies: dict[bytes, Content] = {}

    @property
    def usual_bytes(self) -> int:
        return self.codec.wire_bytes(self.elements) + self.elements * self._live(0).itemsize

    def of(self, digest: bytes) -> PartsResult:
        """A held one."""
        return self._held[digest]

    def get(self, digest: bytes) -> PartsResult | None:
        """As far as it is here. Raises: PeerRefused(MALFORMED) for one of another model."""
        if (held := self._held.get(digest)) is not None:
            return held
        table = self._saved(digest)
        return None if table is None else self._with_saved(rows_of(table))

    def keep_means(self, means: Mapping[bytes, EncodedMean]) -> None:
        """Those of an exchange, by digest, on disk before anything is made of them: whoever commits
        what is made, nobody has to give them. A full disk does not break an exchange."""
        new = {name: mean for name, mean in means.items() if not self.path(name).exists()}
        with self._lock:
            self._undecided |= new.keys()
        for name, mean in new.items():
            try:
                write_tensors(self.path(name), mean.arenas)
            except StorageError:
                with self._lock:
                    self._undecided.discard(name)

    def save(self, digest: bytes) -> None:
        contents = self.of(digest).contents
        for name in contents.keys() - self._decided(contents.keys()):
            write_tensors(self.path(name), contents[name])  # what is there may be damaged

    def keep(self, digests: AbstractSet[bytes]) -> None:
        super().keep(digests)
        if not digests:
            self._decided(frozenset())
            with self._lock:
                self._copies = {}

    def _decided(self, named: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """What is not named of the means that no result named before goes; returns the rest."""
        with self._lock:
            means, self._undecided = self._undecided, set()
        for name in means - named:
            remove_leftover(self.path(name))
        return means & named

    def began(self, keep: AbstractSet[bytes]) -> None:
        self._left, self._pruned = self.unnamed(keep), 0

    def prune(self, keep: AbstractSet[bytes]) -> None:
        for path in self.unnamed(keep) - self._left:
            remove_leftover(path)
        self._pruned += 1
        if self._pruned == MOST_IN_PARTS:
            self._left = frozenset()

    def named_with(self, digests: AbstractSet[bytes]) -> AbstractSet[bytes]:
        tables = (self._saved(digest) or table_of(()) for digest in digests)
        rows = (row for table in tables for row in rows_of(table))
        named = {name for row in rows for name in (row.mean, row.loaded, row.held)}
        return digests | named | self._undecided

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
        result = self.get(digest) or self._with_saved(rows_of(ask(digest)))
        for part, wanted in result.lacking(held).items():
            loaded = result.rows[part].loaded
            is_needed = wanted == loaded and part not in result.means
            with suppress(*(() if is_needed else (PeerRefused, OSError))):
                result = result.with_content(part, wanted, ask(wanted))
                continue
            if part not in result.loaded and part not in result.means:
                result = result.with_content(part, loaded, ask(loaded))
        self.hold(digest, result)

    def served(self, digest: bytes) -> Content | None:
        """A table, or some of a part: from memory, else from disk."""
        rows = self.rows
        if rows and digest == state_digest(table_of(rows)):
            return table_of(rows)
        for part, row in enumerate(rows):
            if row.loaded == digest and (found := self._copied(part, digest)) is not None:
                return found
        for result in tuple(self._held.values()):
            if (content := result.contents.get(digest)) is not None:
                return content
        with suppress(StorageError):
            return read_tensors(self.path(digest))
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

    def _with_saved(self, rows: tuple[Row, ...]) -> PartsResult:
        """What is on disk of a result. Raises: PeerRefused(MALFORMED)."""
        if len(rows) != self.parts.count:
            raise PeerRefused(Reason.MALFORMED, f"a table of {len(rows)} rows")
        result = PartsResult(rows)
        for part, row in enumerate(rows):
            for name in (row.mean, row.loaded, row.held):
                if (content := self._saved(name)) is not None:
                    result = result.with_content(part, name, content)
        return result

    def _saved(self, digest: bytes) -> Content | None:
        """What the disk has under that name, if it is that."""
        with suppress(StorageError):
            content = read_tensors(self.path(digest))
            if state_digest(content) == digest:
                return content
        return None
