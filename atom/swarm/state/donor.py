"""One donor as the fetching side sees it: questions, answers, refusals."""

import time
from dataclasses import replace

from google.protobuf.message import DecodeError

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.state.arenas import CHUNK_BYTES
from atom.swarm.state.manifest import MAX_MANIFEST_BYTES, Manifest, decode_manifest
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.stream.handshake import named_reason
from atom.wire import transport_pb2 as wire

_MAX_REFUSED_BYTES = 1024


class Donor:
    """A blob channel to one peer, from the asking side."""

    def __init__(self, channel: Channel, name: str, patience: Patience) -> None:
        self._channel = channel
        self._name = name
        self._patience = patience
        self._places: dict[int, int] = {}
        """Which of this donor's arenas is the one of that number, once its manifest has come."""

    def manifest(self, max_bytes: int, within_s: float) -> Manifest:
        """With its arenas in the order of their names, whatever the donor's is: the state's digest
        does not depend on it, so a liar's would be right and all honest ones' another.

        Raises: PeerRefused, OSError."""
        self._ask(wire.BlobRequest(name=self._name, manifest=True))
        patience = replace(self._patience, deadline=time.monotonic() + within_s)
        length = self._answer_length(MAX_MANIFEST_BYTES, patience)
        manifest = decode_manifest(self._channel.recv_rest(length, patience), max_bytes)
        if manifest.name != self._name:
            raise PeerRefused(Reason.MALFORMED, "manifest of another blob")
        arenas = manifest.arenas
        by_name = sorted(range(len(arenas)), key=lambda place: arenas[place].name)
        self._places = dict(enumerate(by_name))
        return replace(manifest, arenas=tuple(arenas[place] for place in by_name))

    def ask(self, piece: tuple[int, int]) -> None:
        """Requests (arena, chunk) of the manifest; answers come in the order of requests."""
        arena = self._places.get(piece[0], piece[0])
        self._ask(wire.BlobRequest(name=self._name, arena=arena, chunk=piece[1]))

    def take(self, into: memoryview, within_s: float) -> None:
        """Fills `into` with the next chunk asked for. Raises: PeerRefused, OSError."""
        patience = replace(self._patience, deadline=time.monotonic() + within_s)
        length = self._answer_length(CHUNK_BYTES, patience)
        if length != len(into):
            raise PeerRefused(Reason.MALFORMED, f"chunk of {length} bytes, not {len(into)}")
        self._channel.recv_into(into, patience)

    def _ask(self, request: wire.BlobRequest) -> None:
        raw = request.SerializeToString()
        self._channel.send_frame(Kind.BLOB_REQUEST, raw, patience=self._patience)

    def _answer_length(self, limit: int, patience: Patience) -> int:
        while True:
            kind, length = self._channel.recv_header(max(limit, _MAX_REFUSED_BYTES), patience)
            if kind != Kind.HASHING or length:
                break
        if kind == Kind.BLOB and length <= limit:
            return length
        if kind != Kind.REFUSED or length > _MAX_REFUSED_BYTES:
            raise PeerRefused(Reason.MALFORMED, f"frame kind {kind} of {length} bytes")
        refused = wire.Refused()
        raw = self._channel.recv_rest(length, patience)
        try:
            refused.ParseFromString(raw)
        except DecodeError as error:
            raise PeerRefused(Reason.MALFORMED, "unreadable refusal") from error
        raise PeerRefused(named_reason(refused.reason, Reason.NOT_FOUND), "by the donor")
