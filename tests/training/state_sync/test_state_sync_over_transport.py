"""Catching up from stores over a transport: what is asked for, and what is refused."""

import json
import math
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from atom.base.errors import PeerRefused
from atom.base.events import EventList
from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.state import blobs
from atom.swarm.state.arenas import BlobManifest
from atom.swarm.state.blobs import RESULT_ARENA, BlobServer, BlobStore, plain_bytes
from atom.swarm.state.fetch import Watch
from atom.swarm.stream.frames import Pace
from atom.training.state_sync import donors as serving
from atom.training.state_sync.donors import MAX_OFFERS, Offer, PeerDonors, parse_offers
from atom.training.state_sync.state_sync import CatchUpFailed
from tests.swarm.local_transport import LocalNetwork, LocalTransport
from tests.training.small_history import ROUNDS, run
from tests.training.state_sync.catching_peer import Make, Peer, heads, peer_of

__all__ = ["peer_of"]


class Street:
    """A joiner and donors that serve from their stores."""

    def __init__(self, peer: Peer) -> None:
        self._network = LocalNetwork()
        self._transports: list[LocalTransport] = []
        self.peer = peer
        elements = peer.results.buffer().numel()
        folder = peer.folder / "downloads"
        watch = Watch(events=peer.events)
        self.donors = PeerDonors(self._add(None), elements, peer.replica.state_form, folder, watch)
        peer.with_donors(self.donors)

    def open_door(self, blobs: BlobStore) -> str:
        return self._add(blobs).peer_id

    def _add(self, blobs: BlobStore | None) -> LocalTransport:
        number = len(self._transports)
        transport = LocalTransport(
            self._network, Identity.create(), bytes([number]) * 16, EventList()
        )
        serve = BlobServer(blobs).serve if blobs is not None else None
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


def test_a_joiner_gets_everything_from_a_donor(street: Street, peer_of: Make) -> None:
    donor = street.open_door(store_of(peer_of()))
    street.peer.state_sync.run(heads(donor), discard=False)
    assert street.peer.at(ROUNDS)
    assert list((street.peer.folder / "downloads").iterdir()) == []


class EndlessStore(BlobStore):
    """Says every moment that it is at work, and never gives anything."""

    def manifest(self, name: str, tick: Callable[[], None] = lambda: None) -> BlobManifest:
        while True:
            threading.Event().wait(0.02)
            tick()


def test_who_never_comes_to_the_end_of_its_chain_is_not_waited_for(
    street: Street, peer_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "UNCHECKED_PACE", Pace(slack_s=1.0, bytes_per_s=math.inf))
    monkeypatch.setattr(blobs, "_STILL_S", 0.05)
    liar, honest = street.open_door(EndlessStore()), street.open_door(store_of(peer_of()))
    street.peer.state_sync.run(heads(liar, honest), discard=False)
    assert street.peer.at(ROUNDS)
    dropped = [e for e in street.peer.events.events if e["event"] == "donor-dropped"]
    assert dropped == []


@pytest.mark.parametrize(("last_seen", "fetches"), [(2, ["result"] * 3), (0, ["state", "result"])])
def test_who_returns_fetches_only_what_it_lacks(
    street: Street, peer_of: Make, last_seen: int, fetches: list[str]
) -> None:
    """Three missed rounds are three results; five are a state and the result since."""
    street.peer.store(last_seen, range(1, last_seen + 1), [last_seen])
    street.peer.state_sync.restore()
    donors = [street.open_door(store_of(peer_of(), snapshot=4)) for _ in range(2)]
    street.peer.state_sync.run(heads(*donors), discard=False)
    assert street.peer.at(ROUNDS)
    fetched = [event for event in street.peer.events.events if event["event"] == "fetched"]
    result_bytes = street.peer.results.arena_bytes
    sizes = {"state": 3 * result_bytes, "result": result_bytes}
    assert [event["what"] for event in fetched] == fetches
    assert [event["bytes"] for event in fetched] == [sizes[what] for what in fetches]


def test_who_lies_beside_honest_donors_is_named(street: Street, peer_of: Make) -> None:
    lied = threading.Event()

    class Lying(BlobStore):
        def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
            truth = super().chunk(name, arena, chunk)
            if not name.startswith("state/"):
                return truth
            lied.set()
            return memoryview(bytes(len(truth)))

    class Late(BlobStore):
        def chunk(self, name: str, arena: int, chunk: int) -> memoryview:
            assert not name.startswith("state/") or lied.wait(20.0)
            return super().chunk(name, arena, chunk)

    liar = street.open_door(store_of(peer_of(), into=Lying))
    honest = street.open_door(store_of(peer_of(), into=Late))
    shunned = street.peer.state_sync.run(heads(liar, honest), discard=False)
    assert street.peer.at(ROUNDS)
    assert shunned == (liar,)
    dropped = [e for e in street.peer.events.events if e["event"] == "donor-dropped"]
    assert {event["peer_id"] for event in dropped} == {liar}


def test_of_the_chain_only_what_is_new_is_fetched(street: Street, peer_of: Make) -> None:
    street.peer.store(3, [1, 2, 3], [3])
    street.peer.state_sync.restore()
    asked: list[str] = []
    blobs = store_of(peer_of())
    manifest = blobs.manifest

    def noted(name: str, tick: Callable[[], None] = lambda: None) -> BlobManifest:
        asked.append(name)
        return manifest(name, tick)

    blobs.manifest = noted  # type: ignore[method-assign]
    street.peer.state_sync.run(heads(street.open_door(blobs)), discard=False)
    assert street.peer.at(ROUNDS)
    end = run().heads[-1].digest.hex()
    assert [name for name in asked if name.startswith("chain/")] == [f"chain/{end}/3"]
    whole, news = (blobs.manifest(f"chain/{end}{since}") for since in ("", "/3"))
    assert news.byte_count < whole.byte_count / 2
    for odd in (f"chain/{end}/6", f"chain/{'0' * 64}/1", f"chain/{end}/-1", "chain/x/1"):
        with pytest.raises(PeerRefused):
            blobs.manifest(odd)


NOT_LISTS = [
    b'[[1e999,"00"]]',
    b"[" * 5000 + b"]" * 5000,
    b'[[-1,"' + b"00" * 32 + b'"]]',
    b'[[9223372036854775808,"' + b"00" * 32 + b'"]]',
    b'[[1,"00"]]',
    b'[[true,"' + b"00" * 32 + b'"]]',
    b"[[1,2]]",
    b"[1]",
    b"7",
    b"null",
    b'{"a":1}',
    b"[[1" + b"0" * 6000 + b',"00"]]',
    b"\xff\xfe\x00",
    b"",
    b"[" + b",".join([b'[1,"' + b"00" * 32 + b'"]'] * (MAX_OFFERS + 1)) + b"]",
]


@pytest.mark.parametrize("listed", NOT_LISTS, ids=range(len(NOT_LISTS)))
def test_a_list_out_of_bounds_is_malformed(listed: bytes) -> None:
    with pytest.raises(PeerRefused) as refused:
        parse_offers(listed)
    assert refused.value.reason is Reason.MALFORMED


def test_a_list_within_bounds_is_read() -> None:
    many = b",".join([b'[9223372036854775807,"' + b"ab" * 32 + b'"]'] * MAX_OFFERS)
    assert parse_offers(b"[" + many + b"]") == [Offer(2**63 - 1, b"\xab" * 32)] * MAX_OFFERS
    assert parse_offers(b"[]") == []


@pytest.mark.parametrize("listed", [NOT_LISTS[0], NOT_LISTS[1], b'[[0,""]]'])
def test_a_nonsensical_list_is_passed_over(street: Street, peer_of: Make, listed: bytes) -> None:
    odd = store_of(peer_of())
    odd.register("snapshots", plain_bytes(listed))
    liar = street.open_door(odd)
    with pytest.raises(CatchUpFailed, match="no donor serves a state"):
        street.peer.state_sync.run(heads(liar), discard=False)
    honest = street.open_door(store_of(peer_of()))
    street.peer.state_sync.run(heads(liar, honest), discard=False)
    assert street.peer.at(ROUNDS)


@pytest.mark.parametrize("size", [16, 1 << 20])
def test_a_state_of_another_model_is_refused(street: Street, peer_of: Make, size: int) -> None:
    odd, head = store_of(peer_of()), run().heads[3].digest
    arenas = {name: torch.zeros(size) for name in run().states[0]}
    odd.register(f"state/{head.hex()}", arenas)
    liar = street.open_door(odd)
    with pytest.raises(CatchUpFailed) as failed:
        street.peer.state_sync.run(heads(liar), discard=False)
    assert failed.value.shunned == (liar,)
    assert not street.peer.state_sync.usable


def test_a_state_of_another_model_takes_no_half_fetched_one_along(
    street: Street, peer_of: Make
) -> None:
    story, odd = run(), store_of(peer_of(), snapshot=4)
    begun, bad = story.offer(3), story.offer(2)
    odd.register(f"state/{bad.head.hex()}", {"master": torch.zeros(16)})
    listed = [[offer.round, offer.head.hex()] for offer in (begun, bad)]
    odd.register("snapshots", plain_bytes(json.dumps(listed).encode()))
    folder = street.peer.folder / "downloads" / begun.head.hex()[:16]
    folder.mkdir(parents=True)
    with pytest.raises(CatchUpFailed):
        street.peer.state_sync.run(heads(street.open_door(odd)), discard=False)
    assert [each.name for each in folder.parent.iterdir()] == [folder.name]
    assert street.donors.keeps_something()
    street.donors.keep_only()
    assert not street.donors.keeps_something()


def test_a_result_under_another_arenas_name_is_refused(street: Street, peer_of: Make) -> None:
    name, result = next(iter(run().results.items()))
    odd = BlobStore()
    odd.register(f"result/{name.hex()}", {"other": result})
    liar = street.open_door(odd)
    with pytest.raises(PeerRefused) as refused:
        street.donors.result(name, [liar])
    assert refused.value.reason is Reason.HASH_MISMATCH
    honest = BlobStore()
    honest.register(f"result/{name.hex()}", {RESULT_ARENA: result})
    fetched = street.donors.result(name, [liar, street.open_door(honest)])
    assert torch.equal(fetched, result)
