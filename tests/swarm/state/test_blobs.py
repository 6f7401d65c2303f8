"""The shelf gives out exactly what was registered, and refuses the rest by name."""

import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from atom.base.errors import PeerRefused, StorageError
from atom.base.reasons import Reason
from atom.swarm.state.arenas import CHUNK_BYTES, arena_digest, state_digest
from atom.swarm.state.blobs import BlobServer, BlobStore
from atom.swarm.state.upload_places import Place, UploadPlaces, gives_way
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.wire import transport_pb2 as wire
from tests.swarm.memory_stream import MemoryStream

SOON = 10.0


def state() -> dict[str, torch.Tensor]:
    return {
        "weights": torch.arange(CHUNK_BYTES // 4 + 3, dtype=torch.float32),
        "half": torch.ones(7).bfloat16(),
    }


def test_tensors_come_in_chunks() -> None:
    shelf = BlobStore()
    shelf.register("state/x", state(), head=b"h" * 32, round=5)
    manifest = shelf.manifest("state/x")
    assert manifest.digest() == state_digest(state())
    assert (manifest.head, manifest.round) == (b"h" * 32, 5)
    raw = b"".join(bytes(shelf.chunk("state/x", 0, number)) for number in range(2))
    assert torch.equal(torch.frombuffer(bytearray(raw), dtype=torch.float32), state()["weights"])


def test_a_snapshot_file_is_served_in_place_even_when_replaced(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.safetensors"
    save_file(state(), path, metadata={"round": "5"})
    shelf = BlobStore()
    shelf.register("state/x", path)
    (tmp_path / "newer").write_bytes(b"something else")
    (tmp_path / "newer").rename(path)
    assert shelf.manifest("state/x").digest() == state_digest(state())


def test_bytes_and_single_tensors() -> None:
    shelf = BlobStore()
    result = torch.randn(64)
    shelf.register("chain", b"commits")
    shelf.register("empty", b"")
    shelf.register("result/x", result)
    assert bytes(shelf.chunk("chain", 0, 0)) == b"commits"
    assert shelf.manifest("empty").byte_count == 0
    assert shelf.manifest("result/x").arenas[0].digest() == arena_digest(result)
    assert shelf.names() == ["chain", "empty", "result/x"]


def test_unknown_names_and_places_are_not_found() -> None:
    shelf = BlobStore()
    shelf.register("chain", b"commits")
    for arena, chunk in ((0, 1), (1, 0), (2**31, 2**31)):
        with pytest.raises(PeerRefused) as refused:
            shelf.chunk("chain", arena, chunk)
        assert refused.value.reason is Reason.NOT_FOUND
    shelf.remove("chain")
    with pytest.raises(PeerRefused) as refused:
        shelf.manifest("chain")
    assert refused.value.reason is Reason.NOT_FOUND


@pytest.mark.parametrize("raw", [b"", b"x" * 8, b"\x02" + b"\0" * 7 + b"[]", b"\xff" * 20])
def test_a_broken_snapshot_is_a_storage_error(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "snapshot.safetensors"
    path.write_bytes(raw)
    with pytest.raises(StorageError):
        BlobStore().register("state/x", path)


def ask(channel: Channel, raw: bytes) -> tuple[int, bytes]:
    channel.send_frame(Kind.BLOB_REQUEST, raw, patience=Patience(SOON))
    kind, length = channel.recv_header(1 << 24, Patience(SOON))
    return kind, channel.recv_rest(length, Patience(SOON))


def test_the_server_answers_refuses_and_goes_on() -> None:
    shelf = BlobStore()
    shelf.register("chain", b"commits" * 100_000)
    server = BlobServer(shelf, UploadPlaces(places=1, idle_s=SOON))
    asking, serving = (Channel(stream) for stream in MemoryStream.pair())
    ended = threading.Event()

    def serve() -> None:
        with pytest.raises(ConnectionError):
            server.serve(serving)
        ended.set()

    thread = threading.Thread(target=serve)
    thread.start()
    kind, raw = ask(asking, wire.BlobRequest(name="nothing", manifest=True).SerializeToString())
    assert kind == Kind.REFUSED
    assert wire.Refused.FromString(raw).reason == "not-found"
    assert ask(asking, wire.BlobRequest(name="chain").SerializeToString()) == (
        Kind.BLOB,
        b"commits" * 100_000,
    )
    second, other = (Channel(stream) for stream in MemoryStream.pair())
    server.serve(other)
    kind, length = second.recv_header(1024, Patience(SOON))
    assert kind == Kind.REFUSED
    assert wire.Refused.FromString(second.recv_rest(length, Patience(SOON))).reason == "busy"
    asking.close()
    assert ended.wait(SOON)
    thread.join(SOON)


@pytest.mark.parametrize("raw", [b"\xff\xff", b"x" * 2000])
def test_nonsense_requests_end_the_channel_by_name(raw: bytes) -> None:
    server = BlobServer(BlobStore())
    asking, serving = (Channel(stream) for stream in MemoryStream.pair())
    asking.send_frame(Kind.BLOB_REQUEST, raw, patience=Patience(SOON))
    with pytest.raises(PeerRefused) as refused:
        server.serve(serving)
    assert refused.value.reason in (Reason.MALFORMED, Reason.TOO_LARGE)


def test_who_asks_for_many_names_drives_out_its_own() -> None:
    """Every name that has to be resolved is hashed: many are not to cost others theirs."""
    resolved: list[str] = []
    shelf = BlobStore()

    def resolve(name: str) -> bytes:
        resolved.append(name)
        return name.encode()

    shelf.resolve_others(resolve)
    shelf.look_for("chain/joiner", "joiner")
    for number in range(40):
        shelf.look_for(f"chain/{number}", "stranger")
    resolved.clear()
    for name in ("chain/joiner", "chain/39", "chain/0"):
        shelf.look_for(name, "joiner")
        assert bytes(shelf.chunk(name, 0, 0)) == name.encode()
    assert resolved == ["chain/0"]


def channel_of(peer_id: str) -> Channel:
    channel = Channel(MemoryStream.pair()[0])
    channel.peer_id = peer_id
    return channel


def test_a_peer_has_a_few_places_and_the_idle_lose_theirs() -> None:
    now = 0.0
    places = UploadPlaces(places=4, per_peer=2, idle_s=1.0, now=lambda: now)
    greedy = [channel_of("greedy") for _ in range(3)]
    assert [places.take(channel) for channel in greedy] == [True, True, False]
    other, second = channel_of("other"), channel_of("second")
    assert places.take(other)
    assert places.take(second)
    for channel in (greedy[0], other):
        places.answering(channel, busy=True)
    late = channel_of("late")
    assert not places.take(late), "everybody may take a moment to ask"
    now = 1.5
    places.answering(other, busy=False)
    assert places.take(late)
    assert [channel.closed.is_set() for channel in (*greedy, other, second)] == [
        False, True, False, False, False,
    ]  # fmt: skip
    places.leave(greedy[1])
    last = channel_of("last")
    assert places.take(last), "the next one that is idle"
    assert second.closed.is_set()
    now = 2.0
    assert not places.take(channel_of("more")), "of the rest nobody is idle for long"
    places.leave(other)
    assert places.take(channel_of("more"))


def test_whom_the_run_knows_finds_a_place_among_strangers_that_ask_all_the_time() -> None:
    places = UploadPlaces(places=4, per_peer=3, now=lambda: 0.0, known={"voter", "member"})
    came = [channel_of(peer_id) for peer_id in ("one", "greedy", "greedy", "greedy")]
    for channel in came:
        assert places.take(channel)
        places.answering(channel, busy=True)
    assert not places.take(channel_of("stranger"))
    voter, member = [channel_of("voter") for _ in range(3)], channel_of("member")
    assert [places.take(channel) for channel in (*voter, member)] == [True] * 4
    assert all(channel.closed.is_set() for channel in came)
    assert not places.take(channel_of("member")), "nobody drives out whom the run knows"
    assert not any(channel.closed.is_set() for channel in (*voter, member))


@pytest.mark.parametrize(
    ("comer", "idle_since", "number"),
    [
        ("voter", [0.0, 1.0, None, None], 1),  # a stranger before a voter, if both are idle
        ("stranger", [0.0, None, None, None], 0),
        ("voter", [None, 9.0, 9.0, None], 2),  # of the greediest
        ("stranger", [None, 9.0, 9.0, None], None),
    ],
)
def test_who_gives_way(comer: str, idle_since: list[float | None], number: int | None) -> None:
    served = map(channel_of, ("voter", "one", "greedy", "greedy"))
    taken = [Place(channel, since) for channel, since in zip(served, idle_since, strict=True)]
    leaving = gives_way(taken, comer, {"voter"}, idle_before=5.0)
    assert leaving is (None if number is None else taken[number])
