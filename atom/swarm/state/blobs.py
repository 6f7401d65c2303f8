"""The shelf: named, immutable contents that this peer serves to others in chunks.

Names say what is meant: `state/<head hex>` (a replica's arenas at a certified head),
`result/<digest hex>` (one averaged gradient arena), `chain/<head hex>` (its commits, as bytes).
What is on the shelf must not change: give it a snapshot file or a copy, never an arena that is
still being written.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.state.arena_sources import ArenaSource, FileBytes, TensorArena, safetensors_arenas
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    DTYPES,
    ArenaManifest,
    chunk_digest,
)
from atom.swarm.state.manifest import Manifest
from atom.swarm.state.upload_places import UploadPlaces
from atom.swarm.stream import handshake
from atom.swarm.stream.courtesy import Courtesy
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.wire import transport_pb2 as wire

MAX_REQUEST_BYTES = 1024
BYTES_ARENA = "bytes"
"""Name of the one arena of a blob that is plain bytes."""
RESULT_ARENA = "result"
"""Name of the one arena of a blob that is a single tensor."""
_IDLE_S = 60.0
_SEND_SILENCE_S = 15.0
_RESOLVED = 16
_STILL_S = 1.0
"""How often who hashes says so."""

Tick = Callable[[], None]
"""Called now and then by long work; what it raises ends the work."""


class _Blob:
    """One name on the shelf; hashed when its manifest is first asked for."""

    def __init__(self, name: str, arenas: Mapping[str, ArenaSource], head: bytes, rnd: int) -> None:
        self._name, self._head, self._round = name, head, rnd
        self._arenas = dict(arenas)
        self._sources = list(arenas.values())
        self._lock = threading.Lock()
        self._manifest: Manifest | None = None
        self.read_at = float("-inf")

    def manifest(self, tick: Tick) -> Manifest:
        while not self._lock.acquire(timeout=_STILL_S):
            tick()
        try:
            if self._manifest is None:
                arenas = tuple(_hash(name, source, tick) for name, source in self._arenas.items())
                self._manifest = Manifest(self._name, arenas, self._head, self._round)
            return self._manifest
        finally:
            self._lock.release()

    def chunk(self, arena: int, chunk: int) -> bytes | memoryview:
        if arena < len(self._sources):
            source = self._sources[arena]
            length = source.elements * DTYPES[source.dtype].itemsize
            if chunk * CHUNK_BYTES < length:
                return source.read(chunk * CHUNK_BYTES, min((chunk + 1) * CHUNK_BYTES, length))
        raise PeerRefused(Reason.NOT_FOUND, f"no chunk {chunk} of arena {arena}")


def _hash(name: str, source: ArenaSource, tick: Tick) -> ArenaManifest:
    length = source.elements * DTYPES[source.dtype].itemsize
    digests = []
    for start in range(0, length, CHUNK_BYTES):
        digests.append(chunk_digest(source.read(start, min(start + CHUNK_BYTES, length))))
        tick()
    return ArenaManifest(name, source.dtype, source.elements, b"".join(digests))


Content = bytes | FileBytes | Tensor | Path | Mapping[str, Tensor]
"""Bytes; one tensor; a safetensors snapshot file; or a state's arenas by name."""


class BlobStore:
    """What this peer serves, by name. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._blobs: dict[str, _Blob] = {}
        self._resolve: Callable[[str], Content | None] = lambda name: None
        self._resolved: OrderedDict[str, tuple[_Blob, str]] = OrderedDict()
        """With who asked for it first."""

    def resolve_others(self, resolve: Callable[[str], "Content | None"]) -> None:
        """What is served under names that are not registered; None: nothing. Called from many
        threads; a name must always mean the same."""
        self._resolve = resolve

    def register(self, name: str, content: Content, head: bytes = b"", round: int = 0) -> None:
        """Serves `content` (immutable from now on) under `name`, in place of what had that name.

        Raises: StorageError for a snapshot file that cannot be read.
        """
        blob = _Blob(name, _sources(content), head, round)
        with self._lock:
            self._blobs[name] = blob

    def remove(self, name: str) -> None:
        """Stops serving `name`; running reads of it still finish."""
        with self._lock:
            self._blobs.pop(name, None)

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._blobs)

    def manifest(self, name: str, tick: Tick = lambda: None) -> Manifest:
        """Raises: PeerRefused(NOT_FOUND); OSError from a snapshot file; what `tick` raises."""
        return self._find(name).manifest(tick)

    def chunk(self, name: str, arena: int, chunk: int) -> bytes | memoryview:
        """Raises: PeerRefused(NOT_FOUND); OSError from a snapshot file."""
        blob = self._find(name)
        blob.read_at = self._now()
        return blob.chunk(arena, chunk)

    def read_lately(self, seconds: float) -> set[str]:
        """Names of which somebody read a chunk within that time."""
        since = self._now() - seconds
        with self._lock:
            return {name for name, blob in self._blobs.items() if blob.read_at >= since}

    def look_for(self, name: str, asker: str) -> None:
        """If it has to be resolved, that is on the asker's account: it has few at a time.

        Raises: PeerRefused(NOT_FOUND)."""
        if self._known(name) is None:
            self._resolve_now(name, asker)

    def _known(self, name: str) -> _Blob | None:
        with self._lock:
            resolved, _ = self._resolved.get(name, (None, ""))
            return self._blobs.get(name) or resolved

    def _find(self, name: str) -> _Blob:
        return self._known(name) or self._resolve_now(name, "")

    def _resolve_now(self, name: str, asker: str) -> _Blob:
        content = self._resolve(name)
        if content is None:
            raise PeerRefused(Reason.NOT_FOUND, "no such blob")
        blob = _Blob(name, _sources(content), b"", 0)
        with self._lock:
            self._resolved[name] = blob, asker
            if len(self._resolved) > _RESOLVED:
                del self._resolved[self._dispensable()]
        return blob

    def _dispensable(self) -> str:
        """The oldest of whoever has asked for most: nobody drives out what others work with."""
        askers = Counter(asker for _, asker in self._resolved.values())
        most = max(askers.values())
        return next(name for name, (_, who) in self._resolved.items() if askers[who] == most)


def _sources(content: Content) -> dict[str, ArenaSource]:
    if isinstance(content, FileBytes):
        return {BYTES_ARENA: content.open()}
    if isinstance(content, Path):
        return safetensors_arenas(content)
    if isinstance(content, bytes):
        raw = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0)
        return {BYTES_ARENA: TensorArena(raw.to(torch.uint8))}
    if isinstance(content, Tensor):
        return {RESULT_ARENA: TensorArena(content)}
    return {name: TensorArena(tensor) for name, tensor in content.items()}


class BlobServer:
    """Answers blob channels from a shelf, as many as there are places."""

    def __init__(
        self,
        shelf: BlobStore,
        places: UploadPlaces | None = None,
        courtesy: Courtesy | None = None,
    ) -> None:
        self._shelf = shelf
        self._courtesy = courtesy or Courtesy()
        self._places = places or UploadPlaces()

    def serve(self, channel: Channel) -> None:
        """One channel, until the other end leaves; give this to the transport as `on_blobs`.

        Raises: PeerRefused for a malformed request; OSError when the channel ends.
        """
        if not self._places.take(channel):
            refused = PeerRefused(Reason.BUSY, "enough uploads are running")
            handshake.refuse(channel, refused, Patience(_SEND_SILENCE_S))
            return
        try:
            while not channel.closed.is_set():
                self._answer(channel)
        finally:
            self._places.leave(channel)

    def _answer(self, channel: Channel) -> None:
        request = wire.BlobRequest()
        try:
            raw = channel.recv_frame(Kind.BLOB_REQUEST, MAX_REQUEST_BYTES, Patience(_IDLE_S))
            request.ParseFromString(raw)
        except DecodeError as error:
            raise PeerRefused(Reason.MALFORMED, "unreadable request") from error
        self._places.answering(channel, busy=True)
        patience = Patience(_SEND_SILENCE_S)
        try:
            answer = self._look_up(request, channel, _signs_of_life(channel, patience))
            self._send(channel, memoryview(answer), patience)
        except PeerRefused as refused:
            handshake.refuse(channel, refused, patience)
        finally:
            self._places.answering(channel, busy=False)

    def _look_up(
        self, request: wire.BlobRequest, channel: Channel, tick: Tick
    ) -> bytes | memoryview:
        try:
            self._shelf.look_for(request.name, channel.peer_id)
            if request.manifest:
                return self._shelf.manifest(request.name, tick).encode()
            return self._shelf.chunk(request.name, request.arena, request.chunk)
        except OSError as error:  # our disk's fault: to the asker the blob is simply not here
            raise PeerRefused(Reason.NOT_FOUND, "no longer readable") from error

    def _send(self, channel: Channel, answer: memoryview, patience: Patience) -> None:
        """One frame, in parts that wait for rings: a slow donor must not look silent."""
        channel.send_header(Kind.BLOB, len(answer), patience)
        while answer:
            size = self._next_part(channel, len(answer))
            part, answer = answer[:size], answer[size:]
            channel.send_part(part, patience)

    def _next_part(self, channel: Channel, most: int) -> int:
        """Bytes to send next, once rings leave room for them, or the channel has closed."""
        while True:
            now = time.monotonic()
            size = min(self._courtesy.part_bytes(now), most)
            wait_s = self._courtesy.wait_s(size, now)
            if not wait_s or channel.closed.wait(wait_s):
                return size


def _signs_of_life(channel: Channel, patience: Patience) -> Tick:
    """Tells the asker now and then that the work goes on; raises OSError once it hung up."""
    told = time.monotonic()

    def tick() -> None:
        nonlocal told
        if time.monotonic() - told >= _STILL_S:
            channel.send_frame(Kind.HASHING, patience=patience)
            told = time.monotonic()

    return tick
