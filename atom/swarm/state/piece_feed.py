"""Background fetch of a run's text: keeps a store supplied with pieces while a peer runs.

Pieces that a pass waits for are fetched first, then pieces that are needed next. Each peer fetches
pieces that are needed at about the same time in a random order. So peers that join together fetch
different pieces, and serve them to each other.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from atom.base.errors import PeerRefused, Reason
from atom.swarm.state.arenas import BlobManifest, Piece, Target
from atom.swarm.state.fetch import Fetch, Wanted, Watch
from atom.swarm.state.piece_store import PieceStore, store_target, text_blob
from atom.swarm.stream.frames import Purpose
from atom.swarm.transport.transport import Transport

STRETCH = 64
"""Number of consecutive pieces that count as needed at the same time, and are shuffled."""
_BATCH = 32
"""Most pieces of one fetch."""
_RETRY_S = 2.0
_PLAN_S = 60.0
"""Age at which a plan is replaced."""
_FORGOTTEN_S = 60.0
"""Time after which a demanded piece is dropped unless it was demanded again."""
_REPORTED_AFTER_S = 10.0


@dataclass(frozen=True)
class FeedCallbacks:
    """Callbacks of a feed; called on several threads."""

    watch: Watch
    on_ready: Callable[[], None]
    """Called when all demanded pieces are in the store."""
    attempt: Callable[[Callable[[], None]], bool]
    """Calls a function that may raise StorageError; returns True if it did not."""
    on_failure: Callable[[BaseException], None]


class PieceFeed:
    """Background fetch of pieces, on one thread from `start` to `close`."""

    def __init__(
        self,
        transport: Transport,
        store: PieceStore,
        order: Callable[[], Iterable[Piece]],
        callbacks: FeedCallbacks,
    ) -> None:
        """Prepare a feed.

        Args:
            transport: reaches the donors.
            store: takes the pieces.
            order: returns all pieces in the order of need, or none if that is not known yet. Called
                on the feed's thread.
            callbacks: receives what happens.
        """
        self._transport, self._store, self._callbacks = transport, store, callbacks
        self._order = order
        self._dice = random.Random(transport.peer_id)
        self._changed = threading.Condition()
        self._donors: frozenset[str] = frozenset()
        self._demanded: dict[Piece, float] = {}
        """Demanded pieces that are not in the store, with the time of the last demand."""
        self._waiting_since = 0.0
        """Monotonic time since which pieces are demanded; meaningless if none is."""
        self._soon: list[Piece] = []
        """Planned pieces, in the order in which they are to be fetched."""
        self._plan: Iterator[Piece] = iter(())
        self._planned_at = -math.inf
        self._batch: frozenset[Piece] = frozenset()
        self._break = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="text", daemon=True)

    def start(self) -> None:
        """Start the thread that fetches pieces."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and all waiting for pieces."""
        self._closing.set()
        with self._changed:
            self._break.set()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def know(self, peers: Collection[str]) -> None:
        """Update the set of reachable peers. Thread-safe."""
        with self._changed:
            self._donors = frozenset(peers) - {self._transport.peer_id}

    def need(self, pieces: Collection[Piece]) -> bool:
        """Return True if all these pieces are in the store; if not, demand them.

        Demanded pieces are fetched first, and then `on_ready` is called. A caller that still waits
        has to call this method again from time to time. Thread-safe.
        """
        with self._changed:
            now = time.monotonic()
            lacking = {piece: now for piece in pieces if not self._store.has(piece)}
            if not self._demanded:
                self._waiting_since = now
            if not self._batch.issuperset(lacking.keys() - self._demanded):
                self._break.set()
            self._demanded |= lacking
            self._changed.notify_all()
        return not lacking

    @property
    def why_waiting(self) -> str:
        """Text for display if demanded pieces have been missing for a while. Thread-safe.

        Empty if no piece is missing, or not yet for long.
        """
        with self._changed:
            lacking, donors = len(self._demanded), len(self._donors)
            if not lacking or time.monotonic() - self._waiting_since < _REPORTED_AFTER_S:
                return ""
        what = "1 piece" if lacking == 1 else f"{lacking:,} pieces"
        if not donors:
            return f"{what} of the text are missing, and no peer is there to serve them"
        return f"waits for {what} of the text; peers that may have them: {donors:,}"

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._turn()
        except Exception as failure:  # noqa: BLE001 - the supervisor: the peer decides
            self._callbacks.on_failure(failure)

    def _turn(self) -> None:
        with self._changed:
            if self._break.is_set():
                self._plan = iter(self._soon)  # pieces of the interrupted fetch are planned again
            self._break.clear()
            if self._closing.is_set():
                return
            since = time.monotonic() - _FORGOTTEN_S
            self._demanded = {each: at for each, at in self._demanded.items() if at > since}
            wanted, donors = list(self._demanded)[:_BATCH], sorted(self._donors)
            self._batch = frozenset(wanted)
        wanted += self._ahead(_BATCH - len(wanted), self._batch) if donors else []
        if not wanted or not donors:
            return self._wait()
        with self._changed:
            if self._break.is_set():
                return  # a piece was demanded in the meantime
            self._batch = frozenset(wanted)
        self._dice.shuffle(donors)
        if not self._callbacks.attempt(lambda: self._fetch(wanted, donors)):
            self._wait()

    def _fetch(self, pieces: list[Piece], donors: list[str]) -> None:
        """Fetch pieces from donors, which may lack some of them. Raises: StorageError."""
        store, on_stored = self._store, self._on_stored

        def settle(manifest: BlobManifest, ended: threading.Event) -> Target:
            store.settle(manifest)
            return store_target(store, pieces, ended, on_stored)

        unstopped = threading.Event()  # the check of pieces in the store is short: never stop it
        known = (
            None if store.manifest is None else store_target(store, pieces, unstopped, on_stored)
        )
        name, total = text_blob(store.digest), store.total_bytes
        wanted = Wanted(name, donors, store.digest, total, purpose=Purpose.TEXT)
        try:
            Fetch(self._transport, wanted, settle, self._callbacks.watch, known).run(self._break)
        except PeerRefused as refused:
            if refused.reason is not Reason.SUPERSEDED:
                self._wait()

    def _on_stored(self, piece: Piece) -> None:
        with self._changed:
            if piece not in self._demanded:
                return
            del self._demanded[piece]
            if self._demanded:
                return
        self._callbacks.on_ready()

    def _wait(self) -> None:
        """Wait until another piece is demanded, or for `_RETRY_S`."""
        with self._changed:
            self._changed.wait_for(self._break.is_set, _RETRY_S)

    # ---- what comes next

    def _ahead(self, count: int, besides: Collection[Piece]) -> list[Piece]:
        """Return up to `count` missing pieces that are needed next, without those in `besides`."""
        now, found = time.monotonic(), list[Piece]()
        if now - self._planned_at >= _PLAN_S:
            soon = list(dict.fromkeys(self._order()))
            for start in range(0, len(soon), STRETCH):
                stretch = soon[start : start + STRETCH]
                soon[start : start + STRETCH] = self._dice.sample(stretch, len(stretch))
            if soon:
                self._soon, self._plan, self._planned_at = soon, iter(soon), now
        while len(found) < count and not self._break.is_set():
            piece = next(self._plan, None)
            if piece is None:
                break
            if piece not in besides and not self._store.has(piece):
                found.append(piece)
        return found
