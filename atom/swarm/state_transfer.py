"""Fetching a blob from several donors at once, every chunk checked before it counts.

One thread per donor takes chunks from a common list; a donor that fails, lies or stalls is
dropped with a named reason and its chunks go to the others. Chunks that are already in place with
the right hash (an earlier, interrupted fetch; an older state) are not asked for again.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.base.reasons import Reason
from atom.swarm.arenas import CHUNK_BYTES, bytes_of, chunk_digest
from atom.swarm.blobs import BYTES_ARENA, RESULT_ARENA
from atom.swarm.donor import Donor
from atom.swarm.fetch_target import Target, prepare
from atom.swarm.frames import Channel, Interrupted, Patience, Purpose
from atom.swarm.manifest import Manifest
from atom.swarm.rate_limit import TokenBucket
from atom.swarm.transport import PeerTransport

Progress = Callable[[int, int], None]
"""Bytes in place, bytes in all; called from several threads."""
_IN_FLIGHT = 3  # requests per donor: hides a round trip of three chunk times
_WATCH_S = 0.05


@dataclass(frozen=True)
class FetchOptions:
    """How a fetch behaves."""

    max_bytes: int
    """A manifest that promises more is refused."""
    expected_digest: bytes | None = None
    """State digest that the manifest must have; None: what most donors agree on."""
    max_donors: int = 4
    """Asked at the same time; further ones replace those that fail."""
    bucket: TokenBucket | None = None
    """Limits bytes per second, shared with whatever else uses the bucket."""
    silence_s: float = 15.0
    manifest_s: float = 120.0
    """A donor may first have to hash its snapshot."""


@dataclass(frozen=True)
class Fetched:
    """A complete, checked blob."""

    manifest: Manifest
    arenas: dict[str, Tensor]
    agreeing: int
    """Donors whose manifest had the same digest, of those asked before fetching began."""
    reused_bytes: int
    """Found in place and not fetched."""


def fetch(
    transport: PeerTransport,
    donors: Sequence[str],
    name: str,
    options: FetchOptions,
    into: Path | Mapping[str, Tensor] | None = None,
    on_progress: Progress | None = None,
    stop: threading.Event | None = None,
    events: EventSink | None = None,
) -> Fetched:
    """The blob `name` from `donors` (peer ids, preferred first).

    `into`: a directory (one file per arena; an interrupted fetch resumes there), tensors to fill
    (those that a state must have, by name), or None for new memory. After a failure their
    contents are a mixture and good only for resuming.

    Raises: PeerRefused with the last donor's reason when none is left (NOT_FOUND without donors,
    SUPERSEDED if `stop` was set); StorageError, MismatchError for a target that does not fit.
    """
    work = _Fetch(transport, donors, name, options, into, on_progress, events)
    return work.run(stop or threading.Event())


def fetch_result(
    transport: PeerTransport,
    donors: Sequence[str],
    digest: bytes,
    into: Tensor,
    options: FetchOptions,
    stop: threading.Event | None = None,
) -> None:
    """Fills `into` with the average of that `arena_digest`. Raises: as `fetch`."""
    work = _Fetch(
        transport, donors, f"result/{digest.hex()}", options, {RESULT_ARENA: into}, None, None
    )
    wanted = [(RESULT_ARENA, digest)]
    work.accepts = lambda manifest: [(a.name, a.digest()) for a in manifest.arenas] == wanted
    work.run(stop or threading.Event())


def fetch_bytes(
    transport: PeerTransport,
    donors: Sequence[str],
    name: str,
    options: FetchOptions,
    stop: threading.Event | None = None,
) -> bytes:
    """A blob that is plain bytes, from the first donor that has it; unverified unless expected.

    Raises: as `fetch`; PeerRefused(MALFORMED) if it is not plain bytes.
    """
    work = _Fetch(transport, donors, name, options, None, None, None)
    if options.expected_digest is None:
        work.accepts = lambda manifest: True
    arenas = work.run(stop or threading.Event()).arenas
    if arenas.keys() != {BYTES_ARENA}:
        raise PeerRefused(Reason.MALFORMED, f"{name} is not plain bytes")
    return bytes(bytes_of(arenas[BYTES_ARENA]))


class _Fetch:
    """One running fetch: the list of pieces, and the threads that work through it."""

    def __init__(
        self,
        transport: PeerTransport,
        donors: Sequence[str],
        name: str,
        options: FetchOptions,
        into: Path | Mapping[str, Tensor] | None,
        on_progress: Progress | None,
        events: EventSink | None,
    ) -> None:
        self.accepts: Callable[[Manifest], bool] | None = None
        if options.expected_digest is not None:
            self.accepts = lambda manifest: manifest.digest() == options.expected_digest
        self._transport = transport
        self._name = name
        self._options = options
        self._into = into
        self._on_progress = on_progress or (lambda done, total: None)
        self._events = events
        self._donors = deque(dict.fromkeys(donors))
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._settling = threading.Lock()
        self._manifest: Manifest | None = None
        self._target: Target | None = None
        self._pending: deque[tuple[int, int]] = deque()
        self._missing = 0
        self._agreeing = 1
        self._last = PeerRefused(Reason.NOT_FOUND, "no donors")
        self._fault: Exception | None = None

    def run(self, stop: threading.Event) -> Fetched:
        if self.accepts is None:
            self._agree()
        count = min(self._options.max_donors, len(self._donors))
        with ThreadPoolExecutor(max(count, 1), "atom-fetch") as pool:
            workers = [pool.submit(self._work) for _ in range(count)]
            while not all(worker.done() for worker in workers):
                if stop.is_set():
                    self._end()
                self._pause(_WATCH_S)
        if self._fault is not None:
            raise self._fault
        if stop.is_set() and not self._complete():
            raise PeerRefused(Reason.SUPERSEDED, "stopped here")
        if self._manifest is None or self._target is None or not self._complete():
            raise self._last
        return Fetched(
            self._manifest, self._target.arenas, self._agreeing, self._target.reused_bytes
        )

    def _agree(self) -> None:
        """Without an expected digest: asks some donors and settles on what most of them say."""
        asked = list(self._donors)[: self._options.max_donors]
        with ThreadPoolExecutor(max(len(asked), 1), "atom-fetch") as pool:
            answers = list(pool.map(self._digest_of, asked))
        counted = Counter(answer for answer in answers if answer is not None)
        if not counted:
            raise self._last
        digest, self._agreeing = counted.most_common(1)[0]
        self.accepts = lambda manifest: manifest.digest() == digest

    def _digest_of(self, peer_id: str) -> bytes | None:
        try:
            channel = self._transport.connect(peer_id, Purpose.BLOBS)
            try:
                return self._ask_manifest(self._donor(channel)).digest()
            finally:
                channel.close()
        except (PeerRefused, OSError) as error:
            self._drop(peer_id, error)
            return None

    def _work(self) -> None:
        """One thread: a donor after the other, until everything is there or no donor is left."""
        while not self._stop.is_set() and not self._complete():
            with self._changed:
                if not self._donors:
                    return
                peer_id = self._donors.popleft()
            try:
                self._draw_from(peer_id)
            except Interrupted:
                return
            except (PeerRefused, OSError) as error:
                self._drop(peer_id, error)
            except Exception as error:  # noqa: BLE001 - raised again by `run`, in the caller
                self._fault = error
                self._end()

    def _draw_from(self, peer_id: str) -> None:
        channel = self._transport.connect(peer_id, Purpose.BLOBS)
        try:
            donor = self._donor(channel)
            self._settle(self._ask_manifest(donor))
            self._pull(donor)
        finally:
            channel.close()

    def _donor(self, channel: Channel) -> Donor:
        return Donor(channel, self._name, Patience(self._options.silence_s, stop=self._stop))

    def _ask_manifest(self, donor: Donor) -> Manifest:
        patience = Patience(self._options.manifest_s, stop=self._stop)
        return donor.manifest(self._options.max_bytes, patience)

    def _settle(self, manifest: Manifest) -> None:
        """The first acceptable manifest is the one; others must name the same contents."""
        assert self.accepts is not None
        if not self.accepts(manifest):
            raise PeerRefused(Reason.HASH_MISMATCH, "manifest")
        with self._settling:  # not `_changed`: looking for what is in place already may take long
            if self._manifest is None:
                target = prepare(manifest, self._into, self._stop)
                with self._changed:
                    self._target, self._manifest = target, manifest
                    self._pending.extend(target.missing)
                    self._missing = len(target.missing)
                    self._changed.notify_all()
            elif manifest.arenas != self._manifest.arenas:
                raise PeerRefused(Reason.HASH_MISMATCH, "manifest differs from other donors'")

    def _pull(self, donor: Donor) -> None:
        """Takes pieces until none is left; what was asked and not taken goes back on the list."""
        asked: deque[tuple[int, int]] = deque()
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            while True:
                while len(asked) < _IN_FLIGHT and (piece := self._next(wait=not asked)):
                    asked.append(piece)
                    self._hold_back(piece)
                    donor.ask(piece)
                if not asked:
                    return
                self._take(donor, asked[0], buffer)
                asked.popleft()
        finally:
            with self._changed:
                self._pending.extendleft(asked)
                self._changed.notify_all()

    def _next(self, wait: bool) -> tuple[int, int] | None:
        """A piece to fetch; None if there is none now (or, having waited, ever)."""
        with self._changed:
            if wait:
                self._changed.wait_for(
                    lambda: self._pending or not self._missing or self._stop.is_set()
                )
            if self._stop.is_set():
                raise Interrupted("stopped")
            return self._pending.popleft() if self._pending else None

    def _take(self, donor: Donor, piece: tuple[int, int], buffer: memoryview) -> None:
        assert self._target is not None
        chunk = buffer[: self._target.length(piece)]
        donor.take(chunk)
        if chunk_digest(chunk) != self._target.digest(piece):
            raise PeerRefused(Reason.HASH_MISMATCH, f"arena {piece[0]} chunk {piece[1]}")
        self._target.write(piece, chunk)
        with self._changed:
            self._missing -= 1
            self._changed.notify_all()
        self._on_progress(self._target.done_bytes, self._target.total_bytes)

    def _hold_back(self, piece: tuple[int, int]) -> None:
        assert self._target is not None
        if self._options.bucket is not None:
            wait_s = self._options.bucket.take(self._target.length(piece), time.monotonic())
            self._stop.wait(wait_s)

    def _drop(self, peer_id: str, error: PeerRefused | OSError) -> None:
        refused = error if isinstance(error, PeerRefused) else None
        if refused is None:
            reason = Reason.TIMEOUT if isinstance(error, TimeoutError) else Reason.NOT_FOUND
            refused = PeerRefused(reason, str(error))
        with self._changed:
            self._last = refused
        if self._events is not None:
            self._events.emit(
                "donor-dropped",
                peer_id=peer_id,
                blob=self._name,
                reason=refused.reason.value,
                detail=refused.detail[:200],
            )

    def _complete(self) -> bool:
        with self._changed:
            return self._manifest is not None and self._missing == 0

    def _end(self) -> None:
        with self._changed:
            self._stop.set()
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if self._manifest is None or self._missing:
                self._changed.wait(seconds)
