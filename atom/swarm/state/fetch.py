"""Fetching a blob, or pieces of one, from several donors at once; every chunk is checked before it
counts.

One thread per donor takes pieces off a common queue. A donor that fails, stalls or serves false
bytes is dropped under a named reason, and its pieces go to the others. Chunks that are in place
with the right digest already, of an interrupted fetch, are not asked for again.
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

from atom.base.errors import PeerRefused
from atom.base.events import EventFan, EventSink
from atom.base.reasons import Reason
from atom.swarm.chain.commit_chain import Ask
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    MAX_MANIFEST_BYTES,
    BlobManifest,
    MemoryTarget,
    Piece,
    Target,
    chunk_digest,
    decode_manifest,
)
from atom.swarm.state.piece_store import PieceStore, StoreTarget
from atom.swarm.stream.frames import Channel, Interrupted, Kind, Pace, Patience, Purpose
from atom.swarm.stream.handshake import MAX_FRAME_BYTES, refusal
from atom.swarm.transport.limits import OFFENCES, Unreachable
from atom.swarm.transport.transport import Transport
from atom.wire import transport_pb2 as wire

SILENCE_S = 5.0
"""A donor that says nothing for so long is given up."""
UNCHECKED_PACE = Pace(slack_s=15.0)
"""The least that a donor of plain bytes must give: nobody may give them byte by byte."""
TRIES, PAUSE_S = 3, 0.5
"""Failures of one donor in a row, without a piece in between, before it is given up; and before it
is tried again, which doubles each time."""
MOST_DONORS = 8
"""Asked at the same time; further ones replace those that fail."""
LIES = (OFFENCES | {Reason.WRONG_HEAD}) - {Reason.TIMEOUT}
"""Refusals that tell on the donor, not on the network."""
_MAY_PASS = frozenset(
    {Reason.BUSY, Reason.TOO_MANY_CONNECTIONS, Reason.TIMEOUT, Reason.UNREACHABLE}
)
HASHED_BYTES_PER_S = 50e6
"""The least at which a donor reads and hashes a content before it can say its manifest."""
_PIECE_S = 300.0
"""A donor that needs longer for one piece is of no use, however steadily it trickles."""
_LOOK_S = 0.05


@dataclass(frozen=True)
class Watch:
    """Who hears of a fetch while it runs. Called from several threads."""

    on_progress: Callable[[int, int], None] = lambda done, total: None
    """Bytes in place, bytes in all."""
    events: EventSink = field(default_factory=EventFan)
    on_lie: Callable[[str, Reason], object] = lambda donor, reason: None
    """A donor said what does not hold."""

    def dropped(self, donor: str, blob: str, refused: PeerRefused) -> None:
        """A donor is given up."""
        told = {"reason": refused.reason.value, "detail": refused.detail[:200]}
        self.events.emit("donor-dropped", peer_id=donor, blob=blob, **told)
        if refused.reason in LIES:
            self.on_lie(donor, refused.reason)


@dataclass(frozen=True)
class Wanted:
    """What is fetched, and from whom."""

    name: str
    donors: Sequence[str]
    """Peer ids, preferred first."""
    digest: bytes
    """The state digest that it must have."""
    max_bytes: int
    """A manifest that promises more is refused."""
    pace: Pace | None = None
    """The least that must come, from all donors together; None: each by itself is enough."""
    purpose: Purpose = Purpose.BLOBS


def fetch(
    transport: Transport,
    wanted: Wanted,
    into: Path | None,
    stop: threading.Event | None = None,
    watch: Watch | None = None,
) -> Mapping[str, Tensor]:
    """The arenas that are wanted, complete and checked. `into`: a directory (one file per arena; an
    interrupted fetch goes on there); None: into memory.

    Raises: PeerRefused with the last donor's reason when none is left (NOT_FOUND without donors,
    TOO_SLOW for less than the pace, SUPERSEDED if `stop` was set); StorageError.
    """

    arenas: Mapping[str, Tensor] = {}

    def settle(manifest: BlobManifest, ended: threading.Event) -> Target:
        nonlocal arenas
        if into is None:
            in_memory = MemoryTarget(manifest)
            arenas = in_memory.arenas
            return in_memory
        shapes = [replace(arena, chunk_digests=b"") for arena in manifest.arenas]
        store = PieceStore(wanted.digest, shapes, into)
        store.settle(manifest)
        arenas = store.arenas
        return StoreTarget(store, manifest.pieces, ended)

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
    """For what a donor serves as plain bytes: the caller checks what they say before it asks for
    more. All of it together must come at this pace. What the caller refuses tells on the donor.

    Raises: PeerRefused, OSError; also the function.
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
                raw = asked.take_whole(max_bytes)
                received += len(raw)
                return raw

            yield ask
    except (PeerRefused, OSError) as problem:
        (watch or Watch()).dropped(donor, "plain bytes", refusal_of(problem))
        raise


class Donor:
    """A blob channel to one peer, from the asking side."""

    def __init__(self, channel: Channel, name: str, patience: Patience) -> None:
        self._channel, self._name, self._patience = channel, name, patience

    def manifest(self, max_bytes: int) -> BlobManifest:
        """Raises: PeerRefused, OSError."""
        self._ask(wire.BlobRequest(name=self._name, manifest=True))
        hashing_s = min(SILENCE_S + max_bytes / HASHED_BYTES_PER_S, _PIECE_S)
        patience = replace(self._patience, silence_s=hashing_s)
        return decode_manifest(self.take_whole(MAX_MANIFEST_BYTES, patience), max_bytes)

    def ask(self, piece: Piece) -> None:
        """Answers come in the order of requests."""
        self._ask(wire.BlobRequest(name=self._name, arena=piece[0], chunk=piece[1]))

    def take(self, into: memoryview) -> None:
        """Fills `into` with the next chunk asked for. Raises: PeerRefused, OSError."""
        patience = replace(self._patience, deadline=time.monotonic() + _PIECE_S)
        length = self._answer_length(CHUNK_BYTES, patience)
        if length != len(into):
            raise PeerRefused(Reason.MALFORMED, f"chunk of {length} bytes, not {len(into)}")
        self._channel.recv_into(into, patience)

    def take_whole(self, max_bytes: int, patience: Patience | None = None) -> bytes:
        """What was asked for, of unknown length. Raises: PeerRefused, OSError."""
        within = patience or self._patience
        return self._channel.recv_rest(self._answer_length(max_bytes, within), within)

    def _ask(self, request: wire.BlobRequest) -> None:
        raw = request.SerializeToString()
        self._channel.send_frame(Kind.BLOB_REQUEST, raw, patience=self._patience)

    def _answer_length(self, limit: int, patience: Patience) -> int:
        kind, length = self._channel.recv_header(max(limit, MAX_FRAME_BYTES), patience)
        if kind == Kind.BLOB and length <= limit:
            return length
        if kind != Kind.REFUSED or length > MAX_FRAME_BYTES:
            raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} of {length} bytes")
        raise refusal(self._channel.recv_rest(length, patience), otherwise=Reason.NOT_FOUND)


class Fetch:
    """Used once, by `run`."""

    def __init__(
        self,
        transport: Transport,
        wanted: Wanted,
        settle: Callable[[BlobManifest, threading.Event], Target],
        watch: Watch,
        known: Target | None = None,
    ) -> None:
        """`settle`: the target for a manifest with the right digest. `known`: the target, where the
        manifest is here already."""
        self._transport, self._wanted = transport, wanted
        self._target_for, self._watch = settle, watch
        self._waiting = deque(dict.fromkeys(wanted.donors))
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._settling = threading.Lock()
        self._target = known
        self._given: Counter[str] = Counter()
        self._last = PeerRefused(Reason.NOT_FOUND, "no donors")
        """Why the last donor that failed did."""
        self._fault: Exception | None = None

    def run(self, stop: threading.Event | None) -> None:
        """Raises: as `fetch`."""
        stop = stop or threading.Event()
        count = max(min(MOST_DONORS, len(self._waiting)), 1)
        began = time.monotonic()
        with ThreadPoolExecutor(count, "atom-fetch") as pool:
            workers = [pool.submit(self._work) for _ in range(count)]
            while not all(worker.done() for worker in workers):
                if stop.is_set():
                    self._end(PeerRefused(Reason.SUPERSEDED, "stopped here"))
                elif time.monotonic() - began > self._due_s(count):
                    self._end(PeerRefused(Reason.TOO_SLOW, "less has come than must"))
                self._pause()
        if self._target is not None and self._complete:
            self._tell(self._target, time.monotonic() - began)
            return
        raise self._fault or self._last

    def _tell(self, target: Target, seconds: float) -> None:
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
        """Seconds from the start by which something more must have landed: of each donor a
        piece."""
        pace, target = self._wanted.pace, self._target
        if pace is None:
            return math.inf
        done_bytes = target.done_bytes if target is not None else 0
        all_bytes = target.total_bytes if target is not None else self._wanted.max_bytes
        return pace.due_s(min(done_bytes + donors * CHUNK_BYTES, all_bytes))

    # ---- the threads

    def _work(self) -> None:
        """One thread: a donor after the other, until everything is there or no donor is left."""
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
        """Draws from one donor until all is there or it is given up: for what it serves, for its
        silence if it never gave anything, or after a few failures in a row.

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
        """Where the pieces go, for whoever comes first with the right manifest."""
        if manifest.digest() != self._wanted.digest:
            raise PeerRefused(Reason.HASH_MISMATCH, "manifest")
        with self._settling:  # not `_changed`: looking for what is in place already may take long
            if self._target is None:
                target = self._target_for(manifest, self._stop)
                with self._changed:
                    self._target = target
                self._watch.on_progress(target.done_bytes, target.total_bytes)
                if not target.queue.missing:
                    self._end()
            return self._target

    def _pull(self, donor: Donor, peer_id: str, target: Target) -> None:
        """Asks for pieces and takes them, until none is missing."""
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

    def _next_piece(self, peer_id: str, under_way: int, target: Target) -> Piece | None:
        """A piece to ask this donor for. With nothing else to do, waits a moment for one."""
        with self._changed:
            piece = target.queue.take(peer_id, under_way, time.monotonic())
            if piece is None and not under_way and target.queue.missing:
                if target.queue.is_of_no_use(peer_id):
                    raise PeerRefused(Reason.PIECE_MISSING, "it has none of what is missing")
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
                target.queue.lacks(peer_id, piece)
            return
        if chunk_digest(chunk) != target.digest(piece):
            raise PeerRefused(Reason.HASH_MISMATCH, f"arena {piece[0]} chunk {piece[1]}")
        target.write(piece, chunk)
        with self._changed:
            self._given[peer_id] += len(chunk)
            if target.queue.landed(piece):
                target.done_bytes += len(chunk)
            self._changed.notify_all()
        self._watch.on_progress(target.done_bytes, target.total_bytes)
        if self._complete:
            self._end()

    # ---- what became of it

    def _give_up(self, peer_id: str, refused: PeerRefused) -> None:
        self._last = refused
        if refused.reason is not Reason.PIECE_MISSING:  # nothing is wrong with it
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
    """What became of a donor, under a name."""
    if isinstance(error, PeerRefused):
        return error
    silent = isinstance(error, TimeoutError)
    return PeerRefused(Reason.TIMEOUT if silent else Reason.UNREACHABLE, str(error))
