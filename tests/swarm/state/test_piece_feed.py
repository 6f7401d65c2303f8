"""A store is supplied in the order of need, whatever its donors have, do or become."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from atom.base.errors import Reason, StorageError
from atom.swarm import schema
from atom.swarm.state import fetch as fetch_module
from atom.swarm.state import piece_feed
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    ArenaManifest,
    BlobManifest,
    Piece,
    bytes_of,
    describe,
)
from atom.swarm.state.blobs import MAX_REQUEST_BYTES, BlobServer
from atom.swarm.state.fetch import LIES, Watch
from atom.swarm.state.piece_feed import FeedCallbacks, PieceFeed
from atom.swarm.state.piece_store import PieceStore, text_blob
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.wire import transport_pb2 as wire
from tests.event_list import EventList
from tests.swarm.local_transport import LocalNetwork
from tests.swarm.stream_pairs import HEADER
from tests.swarm.transport_peers import until

SOON = 20.0
PATIENCE = Patience(SOON)
COUNT = 6
TEXT = torch.arange(COUNT * CHUNK_BYTES // 4 - 3, dtype=torch.int32)
MANIFEST = BlobManifest((describe("tokens", TEXT),))
DIGEST = MANIFEST.digest()
SHAPES = [ArenaManifest("tokens", "int32", len(TEXT), b"")]
PIECES: list[Piece] = [(0, number) for number in range(COUNT)]


class Village:
    """Donors around one peer with a feed."""

    def __init__(self, root: Path) -> None:
        self.root, self._network = root, LocalNetwork()
        self.donors = self._network.present
        self.me = self._network.add()
        self.events = EventList()
        self.lies: dict[str, Reason] = {}
        self.ready = threading.Event()
        self.failures: list[BaseException] = []
        self.feeds: list[PieceFeed] = []
        self.order: Sequence[Piece] = ()
        self.troubles: list[StorageError] = []

    def store(self, name: str, pieces: Collection[Piece] = ()) -> PieceStore:
        store = PieceStore(DIGEST, SHAPES, self.root / name)
        if pieces:
            store.settle(MANIFEST)
        for _, number in pieces:
            start = number * CHUNK_BYTES
            store.write((0, number), bytes_of(TEXT)[start : start + CHUNK_BYTES])
        return store

    def donor(self, pieces: Collection[Piece], server: type[BlobServer] = BlobServer) -> str:
        store = self.store(f"donor-{len(self._network.present)}", pieces)
        return self.neighbour(server({text_blob(DIGEST): store}.get).serve)

    def neighbour(self, serve: Callable[[Channel], None]) -> str:
        return self._network.add(serve).peer_id

    def feed(self, store: PieceStore) -> PieceFeed:
        watch = Watch(events=self.events, on_lie=self.lies.__setitem__)
        callbacks = FeedCallbacks(watch, self.ready.set, self.attempt, self.failures.append)
        self.feeds.append(PieceFeed(self.me, store, lambda: self.order, callbacks))
        return self.feeds[-1]

    def attempt(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except StorageError as problem:
            self.troubles.append(problem)
            return False
        return True

    @property
    def dropped(self) -> list[dict[str, Any]]:
        return [event for event in self.events.events if event["event"] == "donor-dropped"]

    def close(self) -> None:
        for feed in self.feeds:
            feed.close()
        self._network.close()
        assert not self.failures


@pytest.fixture
def village(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Village]:
    monkeypatch.setattr(fetch_module, "PAUSE_S", 0.01)
    monkeypatch.setattr(piece_feed, "_RETRY_S", 0.05)
    monkeypatch.setattr(piece_feed, "_PLAN_S", 0.0)
    village = Village(tmp_path)
    yield village
    village.close()


def await_ready(village: Village, feed: PieceFeed, pieces: Collection[Piece]) -> None:
    while not feed.need(pieces):
        assert village.ready.wait(SOON)
        village.ready.clear()


def test_what_is_needed_is_fetched_and_no_more(village: Village) -> None:
    store, donor = village.store("mine"), village.donor(PIECES)
    feed = village.feed(store)
    feed.start()
    feed.know([donor])
    await_ready(village, feed, [(0, 3), (0, 5)])
    assert sorted(store.kept) == [(0, 3), (0, 5)]
    start = 3 * CHUNK_BYTES // 4
    assert torch.equal(store.arenas["tokens"][start : start + 9], TEXT[start : start + 9])


def test_peers_with_a_half_each_make_a_whole(village: Village) -> None:
    """Donors are not blamed for the pieces that they lack."""
    donors = [village.donor(PIECES[:4]), village.donor(PIECES[4:]), village.donor([])]
    store = village.store("mine")
    feed = village.feed(store)
    feed.know(donors)
    feed.start()
    await_ready(village, feed, PIECES)
    assert village.lies == {}
    assert village.dropped == []
    assert torch.equal(store.arenas["tokens"], TEXT)


class Counting(BlobServer):
    served = 0

    def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
        Counting.served += 1
        return super().chunk(name, arena, chunk)


def test_with_nobody_left_it_is_told_and_goes_on_when_somebody_comes(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_feed, "_REPORTED_AFTER_S", 0.0)
    feed = village.feed(village.store("mine"))
    feed.start()
    assert feed.why_waiting == ""
    assert not feed.need(PIECES[:2])
    assert (
        feed.why_waiting == "2 pieces of the text are missing, and no peer is there to serve them"
    )
    feed.know([village.donor(PIECES[5:])])
    assert feed.why_waiting.startswith("waits for 2 pieces")
    feed.know([village.donor(PIECES[:2])])
    await_ready(village, feed, PIECES[:2])
    assert feed.why_waiting == ""


def test_a_restart_fetches_what_is_missing_only(village: Village) -> None:
    Counting.served = 0
    donor = village.donor(PIECES, Counting)
    first = village.feed(village.store("mine"))
    first.know([donor])
    first.start()
    await_ready(village, first, PIECES[:5])
    first.close()
    again = village.store("mine")
    feed = village.feed(again)
    assert feed.need(PIECES[:5]), "from the disk"
    feed.know([donor])
    feed.start()
    await_ready(village, feed, PIECES)
    assert Counting.served == COUNT


def say(channel: Channel, kind: Kind, raw: bytes | memoryview, of: int | None = None) -> None:
    """A frame; `of`: as long as its header says."""
    header = HEADER.pack(len(raw) if of is None else of, kind)
    channel.send_all(memoryview(header + raw), PATIENCE)


def cut_off(channel: Channel, chunk: bytes, rest: threading.Event) -> None:
    say(channel, Kind.BLOB, chunk[: CHUNK_BYTES // 2], of=len(chunk))
    raise ConnectionError("fell over")


def stall(channel: Channel, chunk: bytes, rest: threading.Event) -> None:
    say(channel, Kind.BLOB, chunk[: CHUNK_BYTES // 2], of=len(chunk))
    assert rest.wait(SOON)


ANSWERS: dict[str, tuple[Callable[[Channel, bytes, threading.Event], None], Reason]] = {
    "damaged": (lambda c, raw, _: say(c, Kind.BLOB, raw[:-1] + b"?"), Reason.HASH_MISMATCH),
    "another piece": (lambda c, raw, _: say(c, Kind.BLOB, bytes(len(raw))), Reason.HASH_MISMATCH),
    "too short": (lambda c, raw, _: say(c, Kind.BLOB, raw[:-1]), Reason.MALFORMED),
    "too long": (lambda c, raw, _: say(c, Kind.BLOB, raw + b"?"), Reason.TOO_LARGE),
    "another kind": (lambda c, raw, _: say(c, Kind.MESSAGE, b"hello"), Reason.MALFORMED),
    "an odd refusal": (lambda c, raw, _: say(c, Kind.REFUSED, b"\xff" * 99), Reason.NOT_FOUND),
    "cut in the middle": (cut_off, Reason.UNREACHABLE),
    "stalled in the middle": (stall, Reason.TIMEOUT),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_whatever_a_donor_answers_another_one_gives_the_piece(
    village: Village, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(fetch_module, "SILENCE_S", 0.5)
    (answer, reason), rest = ANSWERS[name], threading.Event()

    def serve(channel: Channel) -> None:
        request = wire.BlobRequest()
        while True:
            asked = channel.recv_frame(Kind.BLOB_REQUEST, MAX_REQUEST_BYTES, PATIENCE)
            request.ParseFromString(asked)
            if request.manifest:
                say(channel, Kind.BLOB, schema.encode(MANIFEST))
            else:
                start = request.chunk * CHUNK_BYTES
                answer(channel, bytes(bytes_of(TEXT)[start : start + CHUNK_BYTES]), rest)

    store, bad = village.store("mine"), village.neighbour(serve)
    feed = village.feed(store)
    feed.know([bad])
    feed.start()
    assert not feed.need(PIECES[:2])
    dropped = until(lambda: village.dropped)
    assert dropped[0]["reason"] == reason.value
    assert village.lies == ({bad: reason} if reason in LIES else {})
    assert store.kept == []
    feed.know([bad, village.donor(PIECES)])
    await_ready(village, feed, PIECES[:2])
    rest.set()


def test_what_comes_next_is_fetched_ahead(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_feed, "STRETCH", 2)
    monkeypatch.setattr(piece_feed, "_BATCH", 1)
    store = village.store("mine")
    feed = village.feed(store)
    feed.know([village.donor(PIECES)])
    village.order = PIECES[4:]
    feed.start()
    await_ready(village, feed, PIECES[:4])
    until(lambda: len(store.kept) == COUNT)
    assert sorted(store.kept) == PIECES


def test_what_was_broken_off_comes_again_by_the_same_plan(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_feed, "_PLAN_S", 1e9)
    monkeypatch.setattr(piece_feed, "_BATCH", 4)
    store = village.store("mine")
    feed = village.feed(store)
    urgent = [PIECES[-1], PIECES[0]]

    class AskedMeanwhile(BlobServer):
        def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
            if urgent:
                feed.need([urgent.pop()])
            until(lambda: not feed._break.is_set())
            return super().chunk(name, arena, chunk)

    donor = village.donor(PIECES, AskedMeanwhile)
    village.order = PIECES
    feed.start()
    assert not feed.need(PIECES[:1]), "while no peer is there"
    feed.know([donor])
    until(lambda: len(store.kept) == COUNT)
    assert torch.equal(store.arenas["tokens"], TEXT)


def test_what_is_demanded_as_a_fetch_begins_is_no_failure(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first donor is asked: the manifest is known already."""
    monkeypatch.setattr(piece_feed, "_BATCH", 1)
    store = village.store("mine", PIECES[:1])
    write = village.attempt

    def attempt(fetch: Callable[[], None]) -> bool:
        feed.need(PIECES[2:3])
        return write(fetch)

    monkeypatch.setattr(village, "attempt", attempt)
    feed = village.feed(store)
    feed.know([village.donor(PIECES)])
    assert not feed.need(PIECES[1:2])
    feed.start()
    await_ready(village, feed, PIECES[1:3])


def test_asking_again_breaks_nothing_off(village: Village, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow line would never bring a piece to its end."""
    monkeypatch.setattr(piece_feed, "_BATCH", 1)
    feed = village.feed(village.store("mine"))
    broken_off = list[bool]()

    class AskedAgain(BlobServer):
        def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
            feed.need(PIECES[:3])
            broken_off.append(feed._break.is_set())
            return super().chunk(name, arena, chunk)

    feed.know([village.donor(PIECES, AskedAgain)])
    feed.need(PIECES[:3])
    feed.start()
    await_ready(village, feed, PIECES[:3])
    assert broken_off == [False] * 3


def test_a_full_disk_is_told_and_tried_again(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = village.store("mine")
    feed = village.feed(store)
    feed.know([village.donor(PIECES)])
    paths, full = store._paths, Path("/dev/full")
    monkeypatch.setattr(store, "_paths", [full])
    feed.start()
    assert not feed.need(PIECES[:2])
    [trouble, *_] = until(lambda: village.troubles)
    assert "the disk is full" in trouble.message
    assert "[state] directory" in trouble.hint
    monkeypatch.setattr(store, "_paths", paths)
    await_ready(village, feed, PIECES[:2])
