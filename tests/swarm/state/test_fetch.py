"""A state arrives whole from several donors, whatever some of them do."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atom.base.errors import MismatchError, PeerRefused, StorageError
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.state import blobs
from atom.swarm.state import fetch as fetch_module
from atom.swarm.state.arenas import CHUNK_BYTES, BlobManifest, arena_digest, state_digest
from atom.swarm.state.blobs import RESULT_ARENA, BlobServer, BlobStore, plain_bytes
from atom.swarm.state.fetch import (
    FetchOptions,
    PieceQueue,
    Wanted,
    Watch,
    fetch,
    fetch_bytes,
    fetch_result,
)
from atom.swarm.state.fetch_target import Piece
from atom.swarm.stream.bandwidth import TransferThrottle
from atom.swarm.stream.frames import Channel, Pace
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import PeerTransport, Transport
from tests.swarm.local_transport import LocalNetwork, LocalTransport

SOON = 20.0
STATE_BYTES = (3 * CHUNK_BYTES // 4 + 7) * 4 + CHUNK_BYTES // 4 * 2
NAME = "state/" + "ab" * 32
CHUNK = CHUNK_BYTES // 4
ALL = 1 << 30


class LyingStore(BlobStore):
    """Tells the truth in manifests and lies in chunks."""

    def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
        return memoryview(bytes(len(super().chunk(name, arena, chunk))))


class StuckStore(BlobStore):
    """Answers the manifest, then never again until released."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
        self.release.wait(SOON)
        return super().chunk(name, arena, chunk)


class ThinkingStore(BlobStore):
    """Takes a second and a half for the manifest, and says so."""

    def manifest(self, name: str, tick: Callable[[], None] = lambda: None) -> BlobManifest:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            time.sleep(0.05)  # a large snapshot is read meanwhile
            tick()
        return super().manifest(name, tick)


class FrozenStore(BlobStore):
    """Says nothing at all until it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.wake = threading.Event()
        self.woken = False

    def manifest(self, name: str, tick: Callable[[], None] = lambda: None) -> BlobManifest:
        self.woken = self.wake.wait(SOON)
        return super().manifest(name, tick)


class CountingStore(BlobStore):
    """Counts the chunks it gave, and can fall over after some."""

    def __init__(self, gives: int = 1 << 30) -> None:
        super().__init__()
        self.given = 0
        self._gives = gives

    def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
        if self.given >= self._gives:
            raise ConnectionError("fell over")
        self.given += 1
        return super().chunk(name, arena, chunk)


class Trickle(TransferThrottle):
    """Never falls silent, and takes its time: parts of 32 KiB."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__()
        self._bytes_per_s = bytes_per_s
        self._next_at = 0.0

    def part_bytes(self, now: float) -> int:
        return 32 * 1024

    def wait_s(self, count: int, now: float) -> float:
        if now < self._next_at:
            return self._next_at - now
        self._next_at = now + count / self._bytes_per_s
        return 0.0


class Town:
    """Donors around one peer that fetches."""

    def __init__(self, kind: str) -> None:
        self._network = LocalNetwork()
        self._kind = kind
        self.transports: list[PeerTransport] = []
        self.me = self._add(None)

    def donor(self, store: BlobStore, throttle: TransferThrottle | None = None) -> str:
        transport = self._add(BlobServer(store, throttle=throttle).serve)
        host, port = transport.address
        self.me.set_addresses(transport.peer_id, [f"{host}:{port}"])
        return transport.peer_id

    def close(self) -> None:
        for transport in self.transports:
            transport.close()

    def _add(self, serve: Callable[[Channel], None] | None) -> PeerTransport:
        identity, incarnation = Identity.create(), bytes([len(self.transports)]) * 16
        transport: PeerTransport = (
            Transport(Local(identity, bytes(32), incarnation), ("127.0.0.1", 0), EventList())
            if self._kind == "tcp"
            else LocalTransport(self._network, identity, incarnation, EventList())
        )
        transport.set_handlers(on_blobs=serve)
        transport.start()
        self.transports.append(transport)
        return transport


@pytest.fixture(params=["local", "tcp"])
def town(request: pytest.FixtureRequest) -> Iterator[Town]:
    yield from towns(request.param)


@pytest.fixture
def local_town() -> Iterator[Town]:
    yield from towns("local")


def towns(kind: str) -> Iterator[Town]:
    before = set(threading.enumerate())
    town = Town(kind)
    yield town
    town.close()
    assert set(threading.enumerate()) <= before


def state(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "master": torch.randn(3 * CHUNK + 7, generator=generator),
        "moment": torch.randn(CHUNK, generator=generator).bfloat16(),
        "none": torch.empty(0),
    }


def stocked(store: BlobStore, contents: Mapping[str, Tensor] | None = None) -> BlobStore:
    store.register(NAME, state() if contents is None else contents)
    return store


def whole() -> BlobStore:
    return stocked(BlobStore())


def options(**changes: object) -> FetchOptions:
    chosen: dict[str, object] = {"max_bytes": ALL, "pause_s": 0.01}
    return FetchOptions(**(chosen | changes))  # type: ignore[arg-type]


def wanted(donors: Sequence[str]) -> Wanted:
    return Wanted(NAME, donors, state_digest(state()))


def assert_is_state(arenas: Mapping[str, Tensor]) -> None:
    assert arenas.keys() == state().keys()
    assert all(torch.equal(arenas[name], tensor) for name, tensor in state().items())


def test_a_state_comes_from_several_donors(town: Town) -> None:
    donors = [town.donor(stocked(BlobStore())) for _ in range(3)]
    steps: list[tuple[int, int]] = []
    fetched = fetch(
        town.me, wanted(donors), options(), watch=Watch(lambda *step: steps.append(step))
    )
    assert_is_state(fetched.arenas)
    total = STATE_BYTES
    assert max(steps) == (total, total)
    assert fetched.reused_bytes == 0


def test_liars_strangers_and_the_absent_are_replaced(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "MOST_DONORS", 1)
    events = EventList()
    donors = [
        Identity.create().peer_id,
        town.donor(stocked(LyingStore())),
        town.donor(stocked(BlobStore(), state(seed=1))),
        town.donor(BlobStore()),
        town.donor(stocked(CountingStore(gives=1))),
        town.donor(stocked(BlobStore())),
    ]
    fetched = fetch(town.me, wanted(donors), options(), watch=Watch(events=events))
    assert_is_state(fetched.arenas)
    dropped = {event["peer_id"]: event["reason"] for event in events.events}
    assert dropped[donors[1]] == dropped[donors[2]] == "hash-mismatch"
    assert dropped[donors[3]] == "not-found"
    assert donors[5] not in dropped


def test_a_stuck_donor_does_not_hold_the_others_up(local_town: Town) -> None:
    stuck = StuckStore()
    donors = [local_town.donor(stocked(stuck)), local_town.donor(stocked(BlobStore()))]
    try:
        fetched = fetch(local_town.me, wanted(donors), options(silence_s=0.3))
        assert_is_state(fetched.arenas)
    finally:
        stuck.release.set()


def test_a_donor_that_reads_a_large_snapshot_says_so(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_STILL_S", 0.1)
    donor = town.donor(stocked(ThinkingStore()))
    fetched = fetch(town.me, wanted([donor]), options(silence_s=0.5, tries=1))
    assert_is_state(fetched.arenas)


def test_one_frozen_before_its_manifest_is_given_up(town: Town) -> None:
    """However long a manifest may take: frozen just after it was reached, it does not tell."""
    frozen = FrozenStore()
    donor = town.donor(stocked(frozen))
    try:
        with pytest.raises(PeerRefused) as refused:
            fetch(town.me, wanted([donor]), options(silence_s=0.3))
        assert not frozen.woken
    finally:
        frozen.wake.set()
    assert refused.value.reason is Reason.TIMEOUT


def test_a_trickling_donor_holds_nobody_up_for_long(local_town: Town) -> None:
    """It never falls silent, and would take minutes for a piece."""
    donors = [
        local_town.donor(stocked(BlobStore()), Trickle(64 * 1024.0)),
        local_town.donor(whole()),
    ]
    fetched = fetch(local_town.me, wanted(donors), options())
    assert_is_state(fetched.arenas)
    assert fetched.given_bytes == {donors[1]: STATE_BYTES}


def test_a_donor_too_slow_for_a_piece_is_given_up(
    local_town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "_PIECE_S", 0.2)
    donor = local_town.donor(whole(), Trickle(1024.0 * 1024))
    with pytest.raises(PeerRefused) as refused:
        fetch(local_town.me, wanted([donor]), options(tries=1))
    assert refused.value.reason is Reason.TIMEOUT


def test_a_donor_with_a_bad_moment_is_asked_again(local_town: Town) -> None:
    stumbles = {0, 2, 3}

    class Stumbling(CountingStore):
        def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
            if self.given in stumbles:
                stumbles.remove(self.given)
                raise PeerRefused(Reason.BUSY)
            return super().chunk(name, arena, chunk)

    donor = local_town.donor(stocked(Stumbling()))
    assert_is_state(fetch(local_town.me, wanted([donor]), options()).arenas)


def test_what_a_liar_costs_is_told(local_town: Town) -> None:
    lies: list[tuple[str, Reason]] = []
    told = threading.Event()

    class Late(BlobStore):
        def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
            assert told.wait(SOON)
            return super().chunk(name, arena, chunk)

    def note(donor: str, reason: Reason) -> None:
        lies.append((donor, reason))
        told.set()

    donors = [local_town.donor(stocked(LyingStore())), local_town.donor(stocked(Late()))]
    fetched = fetch(local_town.me, wanted(donors), options(), watch=Watch(on_lie=note))
    assert_is_state(fetched.arenas)
    assert lies == [(donors[0], Reason.HASH_MISMATCH)]
    assert fetched.given_bytes == {donors[1]: STATE_BYTES}


def test_when_nobody_is_left_the_last_reason_is_told(local_town: Town) -> None:
    for donors, reason in (
        ([], Reason.NOT_FOUND),
        ([local_town.donor(BlobStore())], Reason.NOT_FOUND),
        ([local_town.donor(stocked(LyingStore()))], Reason.HASH_MISMATCH),
    ):
        with pytest.raises(PeerRefused) as refused:
            fetch(local_town.me, wanted(donors), options())
        assert refused.value.reason is reason


def test_a_promise_of_too_much_is_refused(local_town: Town) -> None:
    donor = local_town.donor(stocked(BlobStore()))
    with pytest.raises(PeerRefused) as refused:
        fetch(local_town.me, wanted([donor]), options(max_bytes=CHUNK_BYTES))
    assert refused.value.reason is Reason.TOO_LARGE


def test_an_interrupted_fetch_resumes_on_disk(local_town: Town, tmp_path: Path) -> None:
    first = local_town.donor(stocked(CountingStore(gives=2)))
    with pytest.raises(PeerRefused):
        fetch(local_town.me, wanted([first]), options(), into=tmp_path)
    store = CountingStore()
    second = local_town.donor(stocked(store))
    fetched = fetch(local_town.me, wanted([second]), options(), into=tmp_path)
    assert_is_state(fetched.arenas)
    assert fetched.reused_bytes > 0
    assert store.given < 5  # of five chunks


def test_a_rejoining_peer_fetches_only_what_changed(local_town: Town) -> None:
    mine, store = state(), CountingStore()
    mine["master"][CHUNK + 1] += 1
    donor = local_town.donor(stocked(store))
    fetched = fetch(local_town.me, wanted([donor]), options(), into=mine)
    assert store.given == 1
    assert_is_state(mine)
    assert fetched.arenas["master"].data_ptr() == mine["master"].data_ptr()


def test_a_state_of_another_program_is_a_mismatch(local_town: Town) -> None:
    donor = local_town.donor(stocked(BlobStore()))
    with pytest.raises(MismatchError, match="moment"):
        fetch(local_town.me, wanted([donor]), options(), into={"master": state()["master"]})


def test_an_unusable_directory_is_a_storage_error(local_town: Town, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    donor = local_town.donor(stocked(BlobStore()))
    with pytest.raises(StorageError):
        fetch(local_town.me, wanted([donor]), options(), into=tmp_path / "file")


def test_stopping_ends_a_fetch(local_town: Town) -> None:
    stuck, stop = StuckStore(), threading.Event()
    donor = local_town.donor(stocked(stuck))
    stop.set()
    try:
        with pytest.raises(PeerRefused) as refused:
            fetch(local_town.me, wanted([donor]), options(), stop=stop)
    finally:
        stuck.release.set()
    assert refused.value.reason is Reason.SUPERSEDED


def test_a_result_is_fetched_by_its_digest(town: Town) -> None:
    result, into, wrong = torch.randn(CHUNK + 16), torch.empty(CHUNK + 16), BlobStore()
    digest, right = arena_digest(result), BlobStore()
    wrong.register(f"result/{digest.hex()}", {RESULT_ARENA: result + 1})
    right.register(f"result/{digest.hex()}", {RESULT_ARENA: result})
    donors = [town.donor(wrong), town.donor(right)]
    fetch_result(town.me, donors, digest, into, FetchOptions(into.numel() * 4))
    assert torch.equal(into, result)


def test_a_result_that_comes_too_slowly_is_given_up(local_town: Town) -> None:
    """Something comes all the time, and it would take for ever."""
    result, into, held = torch.randn(CHUNK + 16), torch.empty(CHUNK + 16), BlobStore()
    digest = arena_digest(result)
    held.register(f"result/{digest.hex()}", {RESULT_ARENA: result})
    donor = local_town.donor(held, Trickle(64 * 1024.0))
    quick = FetchOptions(into.numel() * 4, pace=Pace(slack_s=0.5, bytes_per_s=1e9))
    with pytest.raises(PeerRefused) as refused:
        fetch_result(local_town.me, [donor], digest, into, quick)
    assert refused.value.reason is Reason.TOO_SLOW
    at_leisure = FetchOptions(into.numel() * 4, pace=Pace(slack_s=60.0))
    fetch_result(local_town.me, [local_town.donor(held)], digest, into, at_leisure)
    assert torch.equal(into, result)


def test_plain_bytes_are_fetched_whole(town: Town) -> None:
    store, raw = BlobStore(), bytes(range(256)) * 40_000
    store.register("chain", plain_bytes(raw))
    store.register("result/x", {RESULT_ARENA: torch.ones(4)})
    donor = town.donor(store)
    assert fetch_bytes(town.me, donor, "chain", FetchOptions(len(raw))) == raw
    with pytest.raises(PeerRefused) as refused:
        fetch_bytes(town.me, donor, "result/x", FetchOptions(100))
    assert refused.value.reason is Reason.MALFORMED


# ---- which donor is asked for which piece

PIECES: list[Piece] = [(0, number) for number in range(6)]


def test_a_donor_owes_few_pieces_at_a_time() -> None:
    queue = PieceQueue(deque(PIECES))
    assert [queue.take("a", owed, 0.0, most=2) for owed in range(3)] == [(0, 0), (0, 1), None]
    assert queue.landed((0, 0))
    assert not queue.landed((0, 0)), "a second copy does not count"
    assert queue.take("a", 1, 0.0, most=2) == (0, 2)
    assert queue.missing == 5


def test_what_a_gone_donor_owed_comes_first() -> None:
    queue = PieceQueue(deque(PIECES))
    owed = [queue.take("a", number, 0.0) for number in range(3)]
    queue.landed((0, 0))
    queue.drop("a", [piece for piece in owed[1:] if piece])
    assert [queue.take("b", number, 0.0) for number in range(3)] == PIECES[1:4]


def test_an_idle_donor_takes_over_what_is_overdue_last_first_and_once() -> None:
    queue = PieceQueue(deque(PIECES[:2]))
    assert [queue.take("slow", number, 0.0) for number in range(2)] == PIECES[:2]
    assert queue.take("b", 0, 0.5) is None, "not overdue yet"
    assert queue.take("b", 1, 2.0) is None, "it has something to do"
    assert queue.take("slow", 0, 2.0) is None, "it was asked for all of them"
    assert queue.take("b", 0, 2.0) == (0, 1)
    assert queue.take("c", 0, 9.0) == (0, 0)
    assert queue.take("d", 0, 9.0) is None, "two copies at most"
    queue.drop("slow", PIECES[:2])
    assert queue.missing == 2
    assert queue.landed((0, 1))
    assert queue.landed((0, 0))
    assert queue.missing == 0
