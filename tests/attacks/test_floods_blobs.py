"""Attack: a stranger asks for contents as fast as the line allows; a question has 12 bytes."""

import threading
from pathlib import Path

import pytest

from atom.base.errors import Reason
from atom.swarm import schema
from atom.swarm.chain import commit_chain
from atom.swarm.chain.commit import Commit
from atom.swarm.chain.commit_chain import EncodedRecords, parse_commits
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    ArenaManifest,
    BlobManifest,
    decode_manifest,
    max_manifest_bytes,
)
from atom.swarm.state.blobs import BYTES_PER_ANSWER, UPLOADS, BlobServer, plain_bytes
from atom.swarm.state.fetch import Donor
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.transport.limits import KnownPeers
from atom.training.storage import run_storage
from atom.wire import transport_pb2 as wire
from tests.manual_clock import ManualClock
from tests.swarm.chain_samples import page_of
from tests.swarm.refusals import refusal
from tests.swarm.stream_pairs import HEADER, stream_pair
from tests.training.catching_peer import Make, state_name
from tests.training.small_history import ROUNDS, run

SOON = 10.0
ASKED = 50
MIB = 1024 * 1024


def waits_of(server: BlobServer, peer_id: str, asked: int) -> list[float]:
    """Seconds that each answer to this peer is delayed; nothing is waited for."""
    waits, left = list[float](), asked
    asking, serving = (Channel(stream) for stream in stream_pair())
    serving.peer_id = peer_id

    class Noting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    serving.closed = Noting()
    request = wire.BlobRequest(name="x").SerializeToString()
    while left:
        asking.send_frame(Kind.BLOB_REQUEST, request, patience=Patience(SOON))
        server._answer(serving)
        asking.recv_frame(Kind.BLOB, 100, Patience(SOON))
        left -= 1
    return [before + after for before, after in zip(waits[::2], waits[1::2], strict=True)]


def test_small_questions_are_answered_at_a_rate() -> None:
    """The burst is free; then a stranger waits, another one does not, and a voter does not."""
    known = KnownPeers()
    known.at_head(["voter"])
    server = BlobServer(lambda name: plain_bytes(b"hello"), known, ManualClock())
    free = 80 * MIB // BYTES_PER_ANSWER
    flood = waits_of(server, "flood", 2 * free)
    assert max(flood[: free // 2]) == 0.0
    assert min(flood[free + 1 :]) > 0.0
    assert flood[-1] > 0.9, "64 MiB beyond the burst, at 64 MiB/s for all strangers"
    assert set(waits_of(server, "newcomer", 16)) == {0.0}
    assert set(waits_of(server, "voter", 2 * free)) == {0.0}


def test_one_host_with_many_ids_leaves_a_place_to_another_host() -> None:
    server, asked = BlobServer(lambda name: plain_bytes(b"hello")), list[Channel]()

    def admitted(peer_id: str, host: str) -> bool:
        channel = Channel(stream_pair()[1])
        channel.peer_id, channel.remote = peer_id, (host, 1)
        asked.append(channel)
        return server._admits(channel)

    flood = [admitted(f"id {number // 2}", "203.0.113.9") for number in range(UPLOADS)]
    assert flood == [True] * (UPLOADS // 2) + [False] * (UPLOADS // 2)
    assert admitted("newcomer", "198.51.100.7"), "the oldest upload of the other host ends"
    assert [channel.closed.is_set() for channel in asked] == [True] + [False] * UPLOADS
    assert not admitted("id 99", "203.0.113.9"), "it does not push out the newcomer"


# ---- what an answer costs


def test_a_manifest_has_no_room_for_millions_of_arenas() -> None:
    """An empty arena has two bytes on the wire, and takes 80 bytes when it is parsed."""
    donor, asker = stream_pair()
    patience, state_bytes = Patience(SOON), 10**9
    header = HEADER.pack(16 * MIB, Kind.BLOB)
    donor.send_all(memoryview(header + bytes.fromhex("0a00") * 1000), patience)
    asking = Donor(Channel(asker), "state/x", patience)
    assert refusal(asking.manifest, state_bytes) is Reason.TOO_LARGE
    assert max_manifest_bytes(state_bytes) < 2 * MIB
    chunks = -(-(10**12) // CHUNK_BYTES)
    large = ArenaManifest("x" * 256, "uint8", 10**12, bytes(32 * chunks))
    assert decode_manifest(schema.encode(BlobManifest((large,))), 10**12).byte_count == 10**12


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rounds of the commits that were encoded."""
    encoded, record_of = list[int](), commit_chain.record_of

    def counted(commit: Commit) -> bytes:
        encoded.append(commit.value.round)
        return record_of(commit)

    monkeypatch.setattr(commit_chain, "record_of", counted)
    return encoded


def test_a_page_of_the_chain_is_encoded_once(peer_of: Make, encodings: list[int]) -> None:
    peer = peer_of()
    peer.store(ROUNDS, [])
    for since in range(ROUNDS):
        for _ in range(ASKED):
            page = peer.storage.content(f"chain/{since}")
            assert page is not None
    assert sorted(encodings) == list(range(1, ROUNDS + 1))


def test_encoded_records_belong_to_one_chain_and_have_a_bound(
    encodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, records = run().commits, EncodedRecords()
    other = [*commits[:4], run().branch(4)]
    for chain in (commits, other, commits):
        assert parse_commits(records.page(chain, 0))[0] == chain
    assert len(encodings) == 3 * ROUNDS
    monkeypatch.setattr(commit_chain, "KEPT_RECORD_BYTES", len(page_of(commits[:2], 0)))
    for _ in range(3):
        assert parse_commits(records.page(commits, 0))[0] == commits
        assert len(records._records) <= 3, "two of these, and the excess one"


def test_chunks_of_a_state_do_not_read_all_headers_again(
    peer_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = peer_of()
    peer.store(ROUNDS, [], snapshots=[1, 2, 3])
    read, describe = list[Path](), run_storage._describe

    def counted(path: Path) -> run_storage.Snapshot | None:
        read.append(path)
        return describe(path)

    monkeypatch.setattr(run_storage, "_describe", counted)
    for _ in range(ASKED):
        assert peer.storage.content(state_name(2)) is not None
        assert peer.storage.content(state_name(4)) is None
    assert len(read) == 3
