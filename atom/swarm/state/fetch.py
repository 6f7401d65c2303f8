"""Fetch of a blob, or of some of its pieces, from several donors at once; each chunk is verified.

One thread per donor takes pieces off a common queue. A donor that fails, stalls or serves false
bytes is dropped under a named reason, and its pieces are asked of other donors. Chunks that an
interrupted fetch left in place are verified and not fetched again.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from atom.base.errors import PeerRefused, Reason
from atom.base.events import EventFan, EventSink
from atom.swarm.chain.commit_chain import Ask
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    BlobManifest,
    Piece,
    Target,
    chunk_digest,
    decode_manifest,
    max_manifest_bytes,
    memory_target,
)
from atom.swarm.state.piece_store import PieceStore, store_target
from atom.swarm.stream.frames import Channel, Interrupted, Kind, Pace, Patience, Purpose
from atom.swarm.stream.handshake import MAX_FRAME_BYTES, refusal
from atom.swarm.transport.limits import OFFENCES, Unreachable
from atom.swarm.transport.transport import Transport
from atom.wire import transport_pb2 as wire

SILENCE_S = 5.0
"""Silence after which a donor is given up."""
UNCHECKED_PACE = Pace(slack_s=15.0)
"""Least pace of a donor of plain bytes, so that no donor can send them byte by byte."""
TRIES, PAUSE_S = 3, 0.5
"""Consecutive failures, without a piece in between, after which a donor is given up; and the pause
before it is tried again, which doubles each time."""
MOST_DONORS = 8
"""Most donors that are asked at the same time; further donors replace failed ones."""
LIES = (OFFENCES | {Reason.WRONG_HEAD}) - {Reason.TIMEOUT}
"""Reasons for which the donor is to blame, not the network."""
_MAY_PASS = frozenset(
    {Reason.BUSY, Reason.TOO_MANY_CONNECTIONS, Reason.TIMEOUT, Reason.UNREACHABLE}
)
HASHED_BYTES_PER_S = 50e6
"""Least speed at which a donor reads and hashes the contents, to compute their manifest."""
_PIECE_S = 300.0
"""Time limit for one piece, even if its bytes arrive steadily."""
_LOOK_S = 0.05


@dataclass(frozen=True)
class Watch:
    """Callbacks of a running fetch; called from several threads."""

    on_progress: Callable[[int, int], None] = lambda done, total: None
    """Called with the bytes in place and the total bytes."""
    events: EventSink = field(default_factory=EventFan)
    on_lie: Callable[[str, Reason], object] = lambda donor, reason: None
    """Called if a donor sent something false, with its peer id and the reason."""

    def dropped(self, donor: str, blob: str, refused: PeerRefused) -> None:
        """Report that a donor is given up."""
        fields = {"reason": refused.reason.value, "detail": refused.detail[:200]}
        self.events.emit("donor-dropped", peer_id=donor, blob=blob, **fields)
        if refused.reason in LIES:
            self.on_lie(donor, refused.reason)


@dataclass(frozen=True)
class Wanted:
    """Blob to fetch, and the donors to fetch it from."""

    name: str
    donors: Sequence[str]
    """Peer ids of the donors, preferred ones first."""
    digest: bytes
    """State digest that the blob must have."""
    max_bytes: int
    """Bound of the blob's bytes; a larger manifest is refused."""
    pace: Pace | None = None
    """Least pace of all donors together; None: only each donor's own time limits apply."""
    purpose: Purpose = Purpose.BLOBS


def fetch(
    transport: Transport,
    wanted: Wanted,
    into: Path | None,
    stop: threading.Event | None = None,
    watch: Watch | None = None,
) -> Mapping[str, Tensor]:
    """Fetch a whole blob, and return its arenas, complete and verified.

    Args:
        transport: Transport of this peer.
        wanted: Blob and donors.
        into: Directory for one file per arena, in which an interrupted fetch is continued; None
            fetches into memory.
        stop: Event that ends the fetch.
        watch: Callbacks.

    Raises:
        PeerRefused: No donor is left, with the reason of the last one (NOT_FOUND without donors);
            TOO_SLOW: the pace was missed; SUPERSEDED: `stop` was set.
        StorageError: A file cannot be written.
    """

    arenas: Mapping[str, Tensor] = {}

    def settle(manifest: BlobManifest, ended: threading.Event) -> Target:
        nonlocal arenas
        if into is None:
            target, arenas = memory_target(manifest)
            return target
        shapes = [replace(arena, chunk_digests=b"") for arena in manifest.arenas]
        store = PieceStore(wanted.digest, shapes, into)
        store.settle(manifest)
        arenas = store.arenas
        return store_target(store, manifest.pieces, ended)

    Fetch(transport, wanted, settle, watch or Watch()).run(stop)
    return arenas


@contextmanager
def asking(
    transport: Transport,
    donor: str,
    pace: Pace,
    stop: threading.Event | None = None,
    watch: Watch | None = None,
) -> Iterator[Ask]:
    """Connect to a donor of plain bytes; the value is a function that asks for them by name.

    The caller must check the bytes before it asks for more. If it raises PeerRefused, the donor
    counts as the one to blame.

    Args:
        transport: Transport of this peer.
        donor: Peer id of the donor.
        pace: Least pace of all answers together.
        stop: Event that interrupts the transfer.
        watch: Callbacks.

    Raises:
        PeerRefused, OSError: Raised here and by the function.
    """
    began, received = time.monotonic(), 0
    try:
        connection = transport.connect(donor, Purpose.BLOBS, timeout_s=SILENCE_S, stop=stop)
        with closing(connection) as channel:

            def ask(name: str, max_bytes: int) -> bytes:
                nonlocal received
                patience = Patience(SILENCE_S, began + pace.due_s(received), stop)
                asked = Donor(channel, name, patience)
                asked.ask((0, 0))
                raw = asked.recv_answer(max_bytes)
                received += len(raw)
                return raw

            yield ask
    except (PeerRefused, OSError) as problem:
        (watch or Watch()).dropped(donor, "plain bytes", refusal_of(problem))
        raise


class Donor:
    """Asking side of a blob channel to one peer."""

    def __init__(self, channel: Channel, name: str, patience: Patience) -> None:
        self._channel, self._name, self._patience = channel, name, patience

    def manifest(self, max_bytes: int) -> BlobManifest:
        """Ask for the blob's manifest and return it.

        Raises:
            PeerRefused: The donor refuses, or its answer is malformed.
            OSError: The channel ended, or the answer came too late.
        """
        self._ask(wire.BlobRequest(name=self._name, manifest=True))
        hashing_s = min(SILENCE_S + max_bytes / HASHED_BYTES_PER_S, _PIECE_S)
        patience = replace(self._patience, silence_s=hashing_s)
        return decode_manifest(self.recv_answer(max_manifest_bytes(max_bytes), patience), max_bytes)

    def ask(self, piece: Piece) -> None:
        """Ask for a piece. Answers arrive in the order of requests."""
        self._ask(wire.BlobRequest(name=self._name, arena=piece[0], chunk=piece[1]))

    def take(self, into: memoryview) -> None:
        """Receive the next chunk that was asked for.

        Raises:
            PeerRefused: The donor refuses, or the chunk has another length.
            OSError: The channel ended, or the chunk came too late.
        """
        patience = replace(self._patience, deadline=time.monotonic() + _PIECE_S)
        length = self._answer_length(CHUNK_BYTES, patience)
        if length != len(into):
            raise PeerRefused(Reason.MALFORMED, f"chunk of {length} bytes, not {len(into)}")
        self._channel.recv_into(into, patience)

    def recv_answer(self, max_bytes: int, patience: Patience | None = None) -> bytes:
        """Receive an answer of unknown length.

        Args:
            max_bytes: Most bytes of the answer.
            patience: Time limits; None: the usual ones.

        Raises:
            PeerRefused: The donor refuses, or its answer is malformed or too long.
            OSError: The channel ended, or the answer came too late.
        """
        within = patience or self._patience
        return self._channel.recv_body(self._answer_length(max_bytes, within), within)

    def _ask(self, request: wire.BlobRequest) -> None:
        raw = request.SerializeToString()
        self._channel.send_frame(Kind.BLOB_REQUEST, raw, patience=self._patience)

    def _answer_length(self, limit: int, patience: Patience) -> int:
        kind, length = self._channel.recv_header(max(limit, MAX_FRAME_BYTES), patience)
        if kind == Kind.BLOB and length <= limit:
            return length
        if kind != Kind.REFUSED or length > MAX_FRAME_BYTES:
            raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} of {length} bytes")
        raise refusal(self._channel.recv_body(length, patience), otherwise=Reason.NOT_FOUND)


class Fetch:
    """One fetch; `run` may be called once."""

    def __init__(
        self,
        transport: Transport,
        wanted: Wanted,
        settle: Callable[[BlobManifest, threading.Event], Target],
        watch: Watch,
        known: Target | None = None,
    ) -> None:
        """Prepare a fetch.

        Args:
            transport: Transport of this peer.
            wanted: Blob and donors.
            settle: Returns the target for a manifest with the right digest.
            watch: Callbacks.
            known: Target, if the manifest is already known; None: ask a donor for the manifest.
        """
        self._transport, self._wanted = transport, wanted
        self._target_for, self._watch = settle, watch
        self._waiting = deque(dict.fromkeys(wanted.donors))
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._settling = threading.Lock()
        self._target = known
        self._given: Counter[str] = Counter()
        self._last = PeerRefused(Reason.NOT_FOUND, "no donors")
        """Reason of the donor that failed last."""
        self._fault: Exception | None = None

    def run(self, stop: threading.Event | None) -> None:
        """Fetch all missing pieces into the target.

        Raises:
            PeerRefused, StorageError: As `fetch`.
        """
        stop = stop or threading.Event()
        count = max(min(MOST_DONORS, len(self._waiting)), 1)
        began = time.monotonic()
        with ThreadPoolExecutor(count, "atom-fetch") as pool:
            workers = [pool.submit(self._work) for _ in range(count)]
            while not all(worker.done() for worker in workers):
                if stop.is_set():
                    self._end(PeerRefused(Reason.SUPERSEDED, "stopped by this peer"))
                elif time.monotonic() - began > self._due_s(count):
                    self._end(PeerRefused(Reason.TOO_SLOW, "too few bytes arrived in time"))
                self._pause()
        if self._target is not None and self._complete:
            self._report(self._target, time.monotonic() - began)
            return
        raise self._fault or self._last

    def _report(self, target: Target, seconds: float) -> None:
        given = dict(self._given)
        self._watch.events.emit(
            "fetched",
            what=self._wanted.name.partition("/")[0],
            bytes=sum(given.values()),
            reused_bytes=target.reused_bytes,
            seconds=round(seconds, 3),
            from_peers=given,
        )

    def _due_s(self, donors: int) -> float:
        """Return the seconds from the start by which more bytes must have arrived. Each donor is
        allowed the time for one piece."""
        pace, target = self._wanted.pace, self._target
        if pace is None:
            return math.inf
        done_bytes = target.done_bytes if target is not None else 0
        all_bytes = target.total_bytes if target is not None else self._wanted.max_bytes
        return pace.due_s(min(done_bytes + donors * CHUNK_BYTES, all_bytes))

    # ---- the threads

    def _work(self) -> None:
        """Use one donor after another, until all pieces have arrived or no donor is left."""
        try:
            while (peer_id := self._next_donor()) is not None:
                self._use(peer_id)
        except Interrupted:
            return
        except Exception as error:  # noqa: BLE001 - raised again by `run`, in the caller
            self._end(error)

    def _next_donor(self) -> str | None:
        with self._changed:
            return self._waiting.popleft() if self._waiting and not self._complete else None

    def _use(self, peer_id: str) -> None:
        """Fetch from one donor until all pieces have arrived or the donor is given up.

        It is given up if it serves false bytes, if it is silent and has never sent a piece, or
        after a few failures in a row.

        Raises: Interrupted, StorageError, MismatchError.
        """
        failures = 0
        while not self._stop.is_set():
            before = self._given[peer_id]
            try:
                return self._draw_from(peer_id)
            except Interrupted:
                raise
            except (PeerRefused, OSError) as error:
                refused = refusal_of(error)
                silent = isinstance(error, TimeoutError | Unreachable)
            given = self._given[peer_id]
            failures = 1 if given > before else failures + 1
            gone = refused.reason not in _MAY_PASS or (silent and not given)
            if gone or failures >= TRIES:
                return self._give_up(peer_id, refused)
            self._stop.wait(PAUSE_S * 2 ** (failures - 1))

    def _draw_from(self, peer_id: str) -> None:
        connection = self._transport.connect(
            peer_id, self._wanted.purpose, timeout_s=SILENCE_S, stop=self._stop
        )
        with closing(connection) as channel:
            donor = Donor(channel, self._wanted.name, Patience(SILENCE_S, stop=self._stop))
            target = self._target or self._settle(donor.manifest(self._wanted.max_bytes))
            self._pull(donor, peer_id, target)

    def _settle(self, manifest: BlobManifest) -> Target:
        """Return the target; the first donor with the right manifest causes its creation."""
        if manifest.digest() != self._wanted.digest:
            raise PeerRefused(Reason.HASH_MISMATCH, "manifest")
        with self._settling:  # not `_changed`: the check of pieces in place may take long
            if self._target is None:
                target = self._target_for(manifest, self._stop)
                with self._changed:
                    self._target = target
                self._watch.on_progress(target.done_bytes, target.total_bytes)
                if not target.queue.missing:
                    self._end()
            return self._target

    def _pull(self, donor: Donor, peer_id: str, target: Target) -> None:
        """Ask a donor for pieces and receive them, until none is missing."""
        owed: list[Piece] = []
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            while not self._complete:
                while piece := self._next_piece(peer_id, len(owed), target):
                    owed.append(piece)
                    donor.ask(piece)
                if owed:
                    self._take(donor, peer_id, owed[0], target, buffer)
                    del owed[0]
        finally:
            with self._changed:
                target.queue.drop(peer_id, owed)
                self._changed.notify_all()

    def _next_piece(self, peer_id: str, in_flight: int, target: Target) -> Piece | None:
        """Return a piece to ask this donor for, or None. If the donor owes nothing and there is no
        piece for it, wait a moment."""
        with self._changed:
            piece = target.queue.take(peer_id, in_flight, time.monotonic())
            if piece is None and not in_flight and target.queue.missing:
                if target.queue.is_useless(peer_id):
                    raise PeerRefused(Reason.PIECE_MISSING, "the donor has no missing chunk")
                self._changed.wait(_LOOK_S)
            if self._stop.is_set():
                raise Interrupted("stopped")
            return piece

    def _take(
        self, donor: Donor, peer_id: str, piece: Piece, target: Target, buffer: memoryview
    ) -> None:
        chunk = buffer[: target.length(piece)]
        try:
            donor.take(chunk)
        except PeerRefused as refused:
            if refused.reason is not Reason.PIECE_MISSING:
                raise
            with self._changed:
                target.queue.record_lacking(peer_id, piece)
            return
        if chunk_digest(chunk) != target.digest(piece):
            raise PeerRefused(Reason.HASH_MISMATCH, f"arena {piece[0]} chunk {piece[1]}")
        target.write(piece, chunk)
        with self._changed:
            self._given[peer_id] += len(chunk)
            if target.queue.arrived(piece):
                target.done_bytes += len(chunk)
            self._changed.notify_all()
        self._watch.on_progress(target.done_bytes, target.total_bytes)
        if self._complete:
            self._end()

    # ---- the end

    def _give_up(self, peer_id: str, refused: PeerRefused) -> None:
        self._last = refused
        if refused.reason is not Reason.PIECE_MISSING:  # a donor may lack pieces
            self._watch.dropped(peer_id, self._wanted.name, refused)

    @property
    def _complete(self) -> bool:
        with self._changed:
            return self._target is not None and not self._target.queue.missing

    def _end(self, fault: Exception | None = None) -> None:
        with self._changed:
            self._fault = self._fault or fault
            self._stop.set()
            self._changed.notify_all()

    def _pause(self) -> None:
        with self._changed:
            if not self._complete:
                self._changed.wait(_LOOK_S)


def refusal_of(error: PeerRefused | OSError) -> PeerRefused:
    """Convert an error of a donor to a refusal with a named reason."""
    if isinstance(error, PeerRefused):
        return error
    silent = isinstance(error, TimeoutError)
    return PeerRefused(Reason.TIMEOUT if silent else Reason.UNREACHABLE, str(error))
