"""One running fetch: a thread per donor, and what they share."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.state.agreement import agree
from atom.swarm.state.arenas import CHUNK_BYTES, chunk_digest
from atom.swarm.state.donor import Donor
from atom.swarm.state.donor_queue import LIES, DonorQueue, as_refusal
from atom.swarm.state.fetch_options import Fetched, FetchOptions, Watch
from atom.swarm.state.fetch_target import Target, prepare
from atom.swarm.state.manifest import Manifest
from atom.swarm.state.pieces import Piece, PieceBook
from atom.swarm.stream.frames import Channel, Interrupted, Patience, Purpose
from atom.swarm.transport.transport import PeerTransport

_LOOK_S = 0.05
"""How soon somebody with nothing to do sees that a piece is overdue elsewhere."""

Accepts = Callable[[Manifest], bool]


@dataclass(frozen=True)
class Source:
    """What is fetched, and from whom."""

    transport: PeerTransport
    donors: tuple[str, ...]
    name: str


class Fetching:
    """Used once, by `run`."""

    def __init__(
        self,
        source: Source,
        options: FetchOptions,
        into: Path | Mapping[str, Tensor] | None,
        watch: Watch,
    ) -> None:
        self._source = source
        self._options = options
        self._into = into
        self._watch = watch
        self._queue = DonorQueue(source.donors, options.tries, options.pause_s)
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._settling = threading.Lock()
        self._accepts: Accepts
        self._manifest: Manifest | None = None
        self._target: Target | None = None
        self._book: PieceBook | None = None
        self._given: Counter[str] = Counter()
        self._fault: Exception | None = None

    def run(self, accepts: Accepts | None, stop: threading.Event) -> Fetched:
        """`accepts`: which manifest is the right one; None: the one that most donors have.

        Raises: as `atom.swarm.state.state_transfer.fetch`.
        """
        agreeing = 1
        if accepts is None:
            digest, agreeing = self._settle_on_digest(stop)
            self._accepts = lambda manifest: manifest.digest() == digest
        else:
            self._accepts = accepts
        count = min(self._options.max_donors, len(self._queue))
        began = time.monotonic()
        with ThreadPoolExecutor(max(count, 1), "atom-fetch") as pool:
            workers = [pool.submit(self._work) for _ in range(count)]
            while not all(worker.done() for worker in workers):
                if stop.is_set():
                    self._end()
                elif time.monotonic() - began > self._due_s(count) and not self._complete():
                    self._fault = PeerRefused(Reason.TOO_SLOW, "less has come than must")
                    self._end()
                self._pause()
        return self._outcome(agreeing, stop)

    def _due_s(self, donors: int) -> float:
        """Seconds from the start by which something more must have landed: of each donor a
        piece."""
        pace, target = self._options.pace, self._target
        if pace is None:
            return math.inf
        done_bytes = target.done_bytes if target is not None else 0
        all_bytes = target.total_bytes if target is not None else self._options.max_bytes
        return pace.due_s(min(done_bytes + donors * CHUNK_BYTES, all_bytes))

    def _outcome(self, agreeing: int, stop: threading.Event) -> Fetched:
        if self._fault is not None:
            raise self._fault
        if self._manifest is None or self._target is None or not self._complete():
            raise (
                PeerRefused(Reason.SUPERSEDED, "stopped here")
                if stop.is_set()
                else (self._queue.last)
            )
        target = self._target
        given = dict(self._given)
        return Fetched(self._manifest, target.arenas, agreeing, target.reused_bytes, given)

    def _settle_on_digest(self, stop: threading.Event) -> tuple[bytes, int]:
        asked = self._queue.first(self._options.max_donors)
        answers = agree(asked, self._digest_of, stop)
        for donor, answer in answers.items():
            if isinstance(answer, PeerRefused | OSError):
                self._queue.forget(donor)
                self._queue.last = as_refusal(answer)
                self._tell(donor, as_refusal(answer))
        counted = Counter(answer for answer in answers.values() if isinstance(answer, bytes))
        if not counted:
            raise (
                PeerRefused(Reason.SUPERSEDED, "stopped here")
                if stop.is_set()
                else (self._queue.last)
            )
        return counted.most_common(1)[0]

    def _digest_of(self, peer_id: str, stop: threading.Event) -> bytes:
        channel = self._connect(peer_id, stop)
        try:
            return self._ask_manifest(self._donor(channel, stop)).digest()
        finally:
            channel.close()

    # ---- the threads

    def _work(self) -> None:
        """One thread: a donor after the other, until everything is there or no donor is left."""
        while not self._stop.is_set():
            peer_id = self._next_donor()
            if peer_id is None:
                return
            try:
                self._draw_from(peer_id)
            except Interrupted:
                return
            except (PeerRefused, OSError) as error:
                self._failed(peer_id, error)
            except Exception as error:  # noqa: BLE001 - raised again by `run`, in the caller
                self._fault = error
                self._end()
            finally:
                with self._changed:
                    self._changed.notify_all()

    def _next_donor(self) -> str | None:
        """Waits for a donor's turn; None when there is nothing more to do for this thread."""
        with self._changed:
            while not self._stop.is_set() and not self._done() and len(self._queue):
                peer_id = self._queue.take(time.monotonic())
                if peer_id is not None:
                    return peer_id
                self._changed.wait(_LOOK_S)
            return None

    def _draw_from(self, peer_id: str) -> None:
        channel = self._connect(peer_id, self._stop)
        try:
            donor = self._donor(channel, self._stop)
            self._settle(self._ask_manifest(donor))
            self._pull(donor, peer_id)
        finally:
            channel.close()

    def _connect(self, peer_id: str, stop: threading.Event) -> Channel:
        transport, within_s = self._source.transport, self._options.silence_s
        return transport.connect(peer_id, Purpose.BLOBS, timeout_s=within_s, stop=stop)

    def _donor(self, channel: Channel, stop: threading.Event) -> Donor:
        return Donor(channel, self._source.name, Patience(self._options.silence_s, stop=stop))

    def _ask_manifest(self, donor: Donor) -> Manifest:
        return donor.manifest(self._options.max_bytes, self._options.manifest_s)

    def _settle(self, manifest: Manifest) -> None:
        """The first acceptable manifest is the one; others must name the same contents."""
        if not self._accepts(manifest):
            raise PeerRefused(Reason.HASH_MISMATCH, "manifest")
        with self._settling:  # not `_changed`: looking for what is in place already may take long
            if self._manifest is None:
                target = prepare(manifest, self._into, self._stop)
                with self._changed:
                    self._target, self._manifest = target, manifest
                    self._book = PieceBook(target.missing)
                    self._changed.notify_all()
                self._watch.on_progress(target.done_bytes, target.total_bytes)
                if not target.missing:
                    self._end()
            elif manifest.arenas != self._manifest.arenas:
                raise PeerRefused(Reason.HASH_MISMATCH, "manifest differs from other donors'")

    def _pull(self, donor: Donor, peer_id: str) -> None:
        """Asks for pieces and takes them, until none is missing."""
        asked: list[Piece] = []
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            while not self._complete():
                while piece := self._next_piece(peer_id, wait=not asked):
                    asked.append(piece)
                    donor.ask(piece)
                if asked:
                    self._take(donor, peer_id, asked.pop(0), buffer)
        finally:
            with self._changed:
                assert self._book is not None
                self._book.drop(peer_id)
                self._changed.notify_all()

    def _next_piece(self, peer_id: str, wait: bool) -> Piece | None:
        """A piece to ask this donor for. With nothing else to do, waits a moment for one."""
        with self._changed:
            assert self._book is not None
            piece = self._book.take(peer_id, time.monotonic())
            if piece is None and wait and self._book.missing:
                self._changed.wait(_LOOK_S)
            if self._stop.is_set():
                raise Interrupted("stopped")
            return piece

    def _take(self, donor: Donor, peer_id: str, piece: Piece, buffer: memoryview) -> None:
        assert self._target is not None
        chunk = buffer[: self._target.length(piece)]
        donor.take(chunk, self._options.piece_s)
        if chunk_digest(chunk) != self._target.digest(piece):
            raise PeerRefused(Reason.HASH_MISMATCH, f"arena {piece[0]} chunk {piece[1]}")
        self._target.write(piece, chunk)
        with self._changed:
            assert self._book is not None
            self._given[peer_id] += len(chunk)
            self._queue.helped(peer_id)
            if self._book.landed(peer_id, time.monotonic()):
                self._target.done_bytes += len(chunk)
            done = not self._book.missing
            self._changed.notify_all()
        self._watch.on_progress(self._target.done_bytes, self._target.total_bytes)
        if done:
            self._end()

    # ---- what became of it

    def _failed(self, peer_id: str, error: PeerRefused | OSError) -> None:
        with self._changed:
            again = self._queue.failed(peer_id, error, time.monotonic())
        if not again:
            self._tell(peer_id, as_refusal(error))

    def _tell(self, peer_id: str, refused: PeerRefused) -> None:
        self._watch.dropped(peer_id, self._source.name, refused.reason, refused.detail)
        if refused.reason in LIES:
            self._watch.on_lie(peer_id, refused.reason)

    def _complete(self) -> bool:
        with self._changed:
            return self._done()

    def _done(self) -> bool:
        return self._book is not None and not self._book.missing

    def _end(self) -> None:
        with self._changed:
            self._stop.set()
            self._changed.notify_all()

    def _pause(self) -> None:
        with self._changed:
            if not self._done():
                self._changed.wait(_LOOK_S)
