"""The store gives out exactly what was registered or found, and refuses the rest by name."""

import pytest
import torch

from atom.base.errors import Reason
from atom.swarm.state.arenas import CHUNK_BYTES, state_digest
from atom.swarm.state.blobs import UPLOADS, BlobServer, plain_bytes
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.transport.limits import KnownPeers
from atom.wire import transport_pb2 as wire
from tests.swarm.refusals import refusal
from tests.swarm.stream_pairs import stream_pair

SOON = 10.0


def state() -> dict[str, torch.Tensor]:
    return {
        "weights": torch.arange(CHUNK_BYTES // 4 + 3, dtype=torch.float32),
        "half": torch.ones(7).bfloat16(),
    }


def test_what_is_found_is_hashed_once_and_gone_when_it_is_not_found_any_more() -> None:
    contents = {"state/x": state(), "small": plain_bytes(b"old")}
    store = BlobServer(contents.get)
    manifest = store.manifest("state/x")
    assert manifest.digest() == state_digest(state())
    assert store.manifest("state/x") is manifest
    store.manifest("small")
    contents["small"] = plain_bytes(b"new")
    assert store.manifest("small").digest() == state_digest(plain_bytes(b"new"))
    del contents["state/x"]
    assert refusal(store.manifest, "state/x") is Reason.NOT_FOUND


def test_unknown_names_and_places_are_not_found() -> None:
    store = BlobServer({"chain": plain_bytes(b"commits")}.get)
    for name, arena, chunk in (("chain", 0, 1), ("chain", 1, 0), ("chain", 2**31, 9), ("x", 0, 0)):
        assert refusal(store.chunk, name, arena, chunk) is Reason.NOT_FOUND


@pytest.mark.parametrize("raw", [b"\xff\xff", b"x" * 2000])
def test_nonsense_requests_end_the_channel_by_name(raw: bytes) -> None:
    server = BlobServer(lambda name: None)
    asking, serving = (Channel(stream) for stream in stream_pair())
    asking.send_frame(Kind.BLOB_REQUEST, raw, patience=Patience(SOON))
    assert refusal(server.serve, serving) in (Reason.MALFORMED, Reason.TOO_LARGE)


def test_uploads_are_bounded_and_strangers_leave_half_to_peers_of_the_run() -> None:
    known, pairs = KnownPeers(), list[tuple[Channel, Channel]]()
    known.at_head(["voter", "member", "third"])
    server = BlobServer(lambda name: None, known)

    def admitted(peer_id: str) -> bool:
        asking, serving = (Channel(stream) for stream in stream_pair())
        serving.peer_id = peer_id
        pairs.append((asking, serving))
        return server._admits(serving)

    greedy, strangers = ["greedy"] * 5, [f"stranger {number}" for number in range(5)]
    asked = [*greedy, *strangers, *["voter"] * 5, *["member"] * 4, "third"]
    served = [peer_id for peer_id in asked if admitted(peer_id)]
    assert served == [*greedy[:4], *strangers[:4], *["voter"] * 4, *["member"] * 4]
    asking, serving = pairs[-1]
    server.serve(serving)
    refused = asking.recv_frame(Kind.REFUSED, 1024, Patience(SOON))
    assert wire.Refused.FromString(refused).reason == "busy"


def test_uploads_that_have_ended_make_room() -> None:
    server = BlobServer(lambda name: None)
    for _ in range(UPLOADS):
        asking, serving = (Channel(stream) for stream in stream_pair())
        asking.close()
        with pytest.raises(ConnectionError):
            server.serve(serving)
    assert not any(server._serving.values())
