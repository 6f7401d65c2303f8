"""Named, immutable contents that this peer serves to others in chunks.

A blob is a mapping of names to flat host tensors. Names say what is meant: `state/<head>`,
`result/<digest>`, `chain/<round>` (docs/exchange.md). The asking peer checks manifest and chunks
against digests that it trusts. Plain bytes, of one chunk at most, have no manifest.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping

import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from atom.base.clock import BootClock, Clock
from atom.base.errors import PeerRefused, Reason
from atom.swarm import schema
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    BlobManifest,
    bytes_of,
    describe,
)
from atom.swarm.state.piece_store import PieceStore
from atom.swarm.stream import handshake
from atom.swarm.stream.bandwidth import Rate
from atom.swarm.stream.frames import Channel, Kind, Patience, Purpose
from atom.swarm.transport.limits import FairShare, KnownPeers
from atom.wire import transport_pb2 as wire

MAX_REQUEST_BYTES = 1024
UPLOADS, UPLOADS_PER_PEER = 16, 4
_MIB = 1024.0 * 1024.0
ANSWERS_TO_KNOWN = Rate(256 * _MIB, 256 * _MIB)
"""Bytes of answers to each known peer; a 12-byte question costs us up to a millisecond."""
ANSWERS_TO_STRANGER = Rate(8 * _MIB, 16 * _MIB)
"""Bytes of answers to each stranger, however many others ask: a joiner's state must arrive."""
ANSWERS_TO_ALL_STRANGERS = Rate(64 * _MIB, 64 * _MIB)
BYTES_PER_ANSWER = 256 * 1024
"""Bytes that each answer costs in addition to its own."""
BYTES_ARENA = "bytes"
"""Name of the one arena of a blob that is plain bytes."""
_IDLE_S = 15.0
"""Seconds after its last request at which a channel is closed."""
_SEND_SILENCE_S = 15.0
_MANIFESTS = 1024
"""Manifests kept: more than a peer has contents, so no crowd of questions displaces one."""

Content = Mapping[str, Tensor]
"""Arenas by name, contiguous, on the host, and immutable."""


def plain_bytes(raw: bytes) -> Content:
    """Return a blob that is just these bytes."""
    empty = torch.empty(0, dtype=torch.uint8)
    return {BYTES_ARENA: torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else empty}


class BlobServer:
    """Contents that this peer serves by name.

    The channels of each purpose are bounded: in all, for each peer, and half of all for strangers,
    so that a voter finds a place in any crowd. A host group with many channels of strangers gives
    up one for another host. Answers have a rate for each peer. Thread-safe.
    """

    def __init__(
        self,
        find: Callable[[str], Content | PieceStore | None],
        known: KnownPeers | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create a server of immutable contents.

        Args:
            find: Returns the content of a name, or None. Called from many threads, once for each
                chunk. A name of more than one chunk must always mean the same content.
            known: Peers of the run, looked up at each request.
            clock: Time for the rates.
        """
        self._find = find
        self._known = known or KnownPeers()
        self._clock = clock or BootClock()
        self._rates = FairShare(
            self._known, ANSWERS_TO_KNOWN, ANSWERS_TO_STRANGER, ANSWERS_TO_ALL_STRANGERS
        )
        self._lock = threading.Lock()
        self._manifests: dict[str, BlobManifest] = {}
        self._serving = defaultdict[Purpose, list[Channel]](list)
        """Channels that are served, oldest first."""

    def manifest(self, name: str) -> BlobManifest:
        """Return the manifest of a content, and remember a large content's manifest.

        Raises:
            PeerRefused: NOT_FOUND: there is no such content; PIECE_MISSING: its manifest has not
                arrived.
        """
        content = self._content(name)
        if not isinstance(content, Mapping):
            if content.manifest is None:
                raise PeerRefused(Reason.PIECE_MISSING, "the manifest has not arrived yet")
            return content.manifest
        with self._lock:
            known = self._manifests.get(name)
        if known is not None:
            return known
        arenas = tuple(describe(each, content[each]) for each in sorted(content))
        manifest = BlobManifest(arenas)
        if manifest.byte_count > CHUNK_BYTES:
            with self._lock:
                self._manifests[name] = manifest
                if len(self._manifests) > _MANIFESTS:
                    del self._manifests[next(iter(self._manifests))]
        return manifest

    def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
        """Return one chunk of the arena with this index in the order of names.

        Raises:
            PeerRefused: NOT_FOUND: there is no such chunk; PIECE_MISSING: it has not arrived.
        """
        content = self._content(name)
        if not isinstance(content, Mapping):
            return content.chunk((arena, chunk))
        if arena < len(content):
            whole = bytes_of(content[sorted(content)[arena]])
            if chunk * CHUNK_BYTES < max(len(whole), 1):
                return whole[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
        raise PeerRefused(Reason.NOT_FOUND, f"no chunk {chunk} of arena {arena}")

    def serve(self, channel: Channel) -> None:
        """Serve one channel until the other end leaves; the transport calls this as `on_blobs`.

        Raises:
            PeerRefused: A request is malformed.
            OSError: The channel ended.
        """
        if not self._admits(channel):
            refused = PeerRefused(Reason.BUSY, "enough uploads are running")
            handshake.refuse(channel, refused, Patience(_SEND_SILENCE_S))
            return
        try:
            while not channel.closed.is_set():
                self._answer(channel)
        finally:
            with self._lock:
                self._serving[channel.purpose].remove(channel)

    def _content(self, name: str) -> Content | PieceStore:
        content = self._find(name)
        if content is None:
            raise PeerRefused(Reason.NOT_FOUND, "no such blob")
        return content

    def _admits(self, channel: Channel) -> bool:
        with self._lock:
            serving = [each for each in self._serving[channel.purpose] if not each.closed.is_set()]
            few = [each.peer_id for each in serving].count(channel.peer_id) < UPLOADS_PER_PEER
            free = few and self._known.makes_room(channel, serving, UPLOADS)
            self._serving[channel.purpose] += [channel] * free
            return free

    def _answer(self, channel: Channel) -> None:
        request = wire.BlobRequest()
        try:
            raw = channel.recv_frame(Kind.BLOB_REQUEST, MAX_REQUEST_BYTES, Patience(_IDLE_S))
            request.ParseFromString(raw)
        except DecodeError as error:
            raise PeerRefused(Reason.MALFORMED, "unreadable request") from error
        patience = Patience(_SEND_SILENCE_S)
        self._wait_turn(channel, BYTES_PER_ANSWER)  # before the work, so that no hang-up saves it
        try:
            found = self._look_up(request)
            self._wait_turn(channel, len(found))
            channel.send_frame(Kind.BLOB, found, patience=patience)
        except PeerRefused as refused:
            handshake.refuse(channel, refused, patience)

    def _wait_turn(self, channel: Channel, cost: int) -> None:
        """Wait as long as the rates require.

        Raises:
            ConnectionError: The channel was closed.
        """
        wait_s = self._rates.wait_s(channel.peer_id, cost, self._clock.now())
        if channel.closed.wait(wait_s):
            raise ConnectionError("closed by this peer")

    def _look_up(self, request: wire.BlobRequest) -> bytes | memoryview:
        if request.manifest:
            return schema.encode(self.manifest(request.name))
        return self.chunk(request.name, request.arena, request.chunk)
