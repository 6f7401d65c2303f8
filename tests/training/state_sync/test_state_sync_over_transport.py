"""Catching up from stores over a transport: what is asked for, and what is refused."""

import math
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.swarm.chain import commit_chain
from atom.swarm.identity import Identity
from atom.swarm.state.blobs import RESULT_ARENA, BlobServer, BlobStore, plain_bytes
from atom.swarm.state.fetch import Watch
from atom.swarm.stream.bandwidth import TransferThrottle
from atom.swarm.stream.frames import Pace
from atom.training.state_sync import donors as serving
from atom.training.state_sync.donors import MAX_OFFERS, PeerDonors
from tests.swarm.local_transport import LocalNetwork, LocalTransport
from tests.swarm.refusals import refusal
from tests.swarm.shelf import Shelf
from tests.swarm.trickle import Trickle
from tests.training.small_history import ROUNDS, run
from tests.training.state_sync.catching_peer import Make, Peer, peer_of

__all__ = ["peer_of"]


class Street:
    """A joiner and donors that serve from their stores."""

    def __init__(self, peer: Peer) -> None:
        self._network = LocalNetwork()
        self._transports: list[LocalTransport] = []
        self.peer = peer
        elements = peer.results.buffer().numel()
        folder = peer.folder / "downloads"
        self.liars: list[str] = []
        watch = Watch(events=peer.events, on_lie=lambda who, reason: self.liars.append(who))
        self.donors = PeerDonors(self._add(None), elements, peer.replica.state_form, folder, watch)
        peer.with_donors(self.donors)

    def open_door(self, blobs: BlobStore, throttle: TransferThrottle | None = None) -> str:
        return self._add(blobs, throttle).peer_id

    def _add(
        self, blobs: BlobStore | None, throttle: TransferThrottle | None = None
    ) -> LocalTransport:
        number = len(self._transports)
        transport = LocalTransport(
            self._network, Identity.create(), bytes([number]) * 16, EventList()
        )
        serve = BlobServer(blobs, throttle=throttle).serve if blobs is not None else None
        transport.set_handlers(on_blobs=serve)
        transport.start()
        self._transports.append(transport)
        return transport

    def close(self) -> None:
        self.donors.close()
        for transport in self._transports:
            transport.close()


@pytest.fixture
def street(peer_of: Make) -> Iterator[Street]:
    run()  # tracing starts threads of its own
    before = set(threading.enumerate())
    street = Street(peer_of(knows_start=False))
    yield street
    street.close()
    assert set(threading.enumerate()) <= before


def store_of(
    peer: Peer, snapshot: int = 3, into: Callable[..., BlobStore] = BlobStore
) -> BlobStore:
    """What a peer at the newest head with one snapshot offers."""
    peer.store(ROUNDS, [3, 4, 5], snapshots=[snapshot])
    peer.storage.begin()
    peer.store(0, [3, 4, 5])
    return into(peer.storage.content)


class Altered(Shelf):
    """What a peer offers, but for what a test puts in its place."""

    def __init__(self, truth: BlobStore) -> None:
        super().__init__()
        self._find = lambda name: self.contents.get(name) or truth._find(name)


def altered(peer: Peer, snapshot: int = 3) -> Altered:
    return Altered(store_of(peer, snapshot))


def noting(asked: list[str]) -> type[BlobStore]:
    class Noting(BlobStore):
        def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
            asked.append(name)
            return super().chunk(name, arena, chunk)

    return Noting


def test_a_joiner_gets_everything_from_a_donor(street: Street, peer_of: Make) -> None:
    donor = street.open_door(store_of(peer_of()))
    street.peer.state_sync.run((donor,), discard=False)
    assert street.peer.at(ROUNDS)
    assert list((street.peer.folder / "downloads").iterdir()) == []


@pytest.mark.parametrize("bytes_per_s", [300, 2000])
def test_a_chain_that_trickles_is_given_up_and_what_was_checked_is_kept(
    street: Street, peer_of: Make, monkeypatch: pytest.MonkeyPatch, bytes_per_s: int
) -> None:
    """A page, or none, comes in time; the next donor is asked for the rest."""
    monkeypatch.setattr(commit_chain, "PAGE_BYTES", len(run().chain(1)) + 10)
    monkeypatch.setattr(serving, "UNCHECKED_PACE", Pace(slack_s=1.5, bytes_per_s=math.inf))
    asked: list[str] = []
    slow = street.open_door(store_of(peer_of()), Trickle(bytes_per_s, 20))
    honest = street.open_door(noting(asked)(store_of(peer_of())._find))
    assert "no byte for too long" in street.peer.state_sync.run((slow,), discard=False)
    street.peer.state_sync.run((honest,), discard=False)
    assert street.peer.at(ROUNDS)
    assert (asked[0] == "chain/0") == (bytes_per_s == 300)
    assert street.liars == [], "slow is no lie"


@pytest.mark.parametrize(("last_seen", "fetches"), [(2, ["result"] * 3), (0, ["state", "result"])])
def test_who_returns_fetches_only_what_it_lacks(
    street: Street, peer_of: Make, last_seen: int, fetches: list[str]
) -> None:
    """Three missed rounds are three results; five are a state and the result since."""
    street.peer.store(last_seen, range(1, last_seen + 1), [last_seen])
    street.peer.state_sync.restore()
    donors = [street.open_door(store_of(peer_of(), snapshot=4)) for _ in range(2)]
    street.peer.state_sync.run(donors, discard=False)
    assert street.peer.at(ROUNDS)
    fetched = [event for event in street.peer.events.events if event["event"] == "fetched"]
    result_bytes = street.peer.results.arena_bytes
    sizes = {"state": 3 * result_bytes, "result": result_bytes}
    assert [event["what"] for event in fetched] == fetches
    assert [event["bytes"] for event in fetched] == [sizes[what] for what in fetches]


@pytest.mark.parametrize("listed", [b"", b"[[1,2]]", b"x" * (MAX_OFFERS * 32 + 1)])
def test_a_nonsensical_list_is_passed_over(street: Street, peer_of: Make, listed: bytes) -> None:
    odd = altered(peer_of())
    odd.contents["snapshots"] = plain_bytes(listed)
    liar = street.open_door(odd)
    assert "no donor serves a state" in street.peer.state_sync.run((liar,), discard=False)
    honest = street.open_door(store_of(peer_of()))
    street.peer.state_sync.run((liar, honest), discard=False)
    assert street.peer.at(ROUNDS)


@pytest.mark.parametrize("size", [16, 1 << 20])
def test_a_state_of_another_model_is_refused(street: Street, peer_of: Make, size: int) -> None:
    odd, head = altered(peer_of()), run().heads[3].digest
    arenas = {name: torch.zeros(size) for name in run().states[0]}
    odd.contents[f"state/{head.hex()}"] = arenas
    liar = street.open_door(odd)
    assert street.peer.state_sync.run((liar,), discard=False)
    assert street.liars == [liar]
    assert not street.peer.state_sync.usable


def test_a_state_of_another_model_takes_no_half_fetched_one_along(
    street: Street, peer_of: Make
) -> None:
    story, odd = run(), altered(peer_of(), snapshot=4)
    begun, bad = story.heads[3], story.heads[2]
    odd.contents[f"state/{bad.digest.hex()}"] = {"master": torch.zeros(16)}
    listed = begun.digest + bad.digest
    odd.contents["snapshots"] = plain_bytes(listed)
    folder = street.peer.folder / "downloads" / begun.digest.hex()[:16]
    folder.mkdir(parents=True)
    assert street.peer.state_sync.run([street.open_door(odd)], discard=False)
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]
    assert street.donors.keeps_something()
    street.donors.keep_only()
    assert not street.donors.keeps_something()


@pytest.mark.parametrize("kind", ["atom-offers", "atom-fetch"])
def test_without_a_thread_to_be_had_catching_up_fails_and_is_tried_again(
    street: Street, peer_of: Make, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    donor, start = street.open_door(store_of(peer_of())), threading.Thread.start

    def no_more(thread: threading.Thread) -> None:
        if thread.name.startswith(kind):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_more)
        assert "can't start new thread" in street.peer.state_sync.run((donor,), discard=False)
    street.peer.state_sync.run((donor,), discard=False)
    assert street.peer.at(ROUNDS)


def test_a_result_under_another_arenas_name_is_refused(street: Street, peer_of: Make) -> None:
    name, result = next(iter(run().results.items()))
    odd = Shelf()
    odd.contents[f"result/{name.hex()}"] = {"other": result}
    liar = street.open_door(odd)
    assert refusal(street.donors.result, name, [liar]) is Reason.HASH_MISMATCH
    honest = Shelf()
    honest.contents[f"result/{name.hex()}"] = {RESULT_ARENA: result}
    fetched = street.donors.result(name, [liar, street.open_door(honest)])
    assert torch.equal(fetched, result)
