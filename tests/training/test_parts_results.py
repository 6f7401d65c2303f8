"""Results of which a peer has its part: on disk, to others, and put together again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swap.state_form import StateForm
from atom.swarm.exchange.codec import codec_named
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.fetch import Wanted, fetch
from atom.swarm.state.part_rows import LOADED, Row, rows_of
from atom.training.exchange import result_of
from atom.training.storage.parts_results import PartsResult, PartsResults
from tests.swarm.local_transport import LocalNetwork
from tests.swarm.threaded_ring import sources
from tests.training.parts_room import LAYOUT, Room, cut_small

CODEC = codec_named("bfloat16")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


@pytest.fixture
def room() -> Iterator[Room]:
    made = Room(3, torch.bfloat16, StateForm.SPLIT)
    yield made
    made.swarm.close()


@pytest.fixture
def results(room: Room) -> list[PartsResult]:
    """What each has of one round."""
    given = [*sources(3, LAYOUT.trained_elements)]
    return [result_of(*each) for each in room.round(room.holding, [*given], 1, CODEC)]


def stored(room: Room, result: PartsResult, folder: Path) -> PartsResults:
    """On disk alone."""
    there = PartsResults(folder, room.parts, CODEC)
    there.hold(result.digest, result)
    there.save(result.digest)
    there.keep(frozenset())
    return there


def test_a_restart_finds_what_it_had(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    digest, held = results[1].digest, room.holding.holds[1]
    there = stored(room, results[1], tmp_path)
    found = there.get(digest)
    assert found is not None
    assert found.lacking(held) == {}
    there.hold(digest, found)
    before = results[1].numbers(CODEC, room.parts, held)
    after = there.numbers(digest, held)
    for start, stop in room.ranges:
        assert torch.equal(after[start:stop], before[start:stop])
    there.keep(frozenset())
    path = there.path(digest)
    whole = path.read_bytes()
    for damaged in (b"garbage", whole[:-40], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        assert there.get(digest) is None
    there.prune(frozenset())
    assert not path.exists()


def test_results_of_another_cut_are_none(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    digest = results[0].digest
    stored(room, results[0], tmp_path)
    other = PartsResults(tmp_path, type(room.parts)(room.parts.elements, 4096), CODEC)
    assert other.get(digest) is None


def test_a_peer_that_was_away_fetches_from_several_what_each_has(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    """Over connections; every content by its digest. Then it can take the step of any holdings."""
    network = LocalNetwork()
    donors = [stored(room, each, tmp_path / str(n)) for n, each in enumerate(results)]
    servers = [
        BlobServer(lambda name, there=there: there.served(bytes.fromhex(name)))  # type: ignore[misc]
        for there in donors
    ]
    doors = [network.add(server.serve) for server in servers]
    peers, us = [door.peer_id for door in doors], network.add()
    try:
        fetched = 0

        def content(digest: bytes) -> dict[str, torch.Tensor]:
            nonlocal fetched
            fetched += 1
            return dict(fetch(us, Wanted(digest.hex(), peers, digest, 1 << 24), None))

        digest, held = results[0].digest, frozenset({0, 3, 4})
        mine = PartsResult(rows_of(content(digest)), {}, {})
        assert mine.digest == digest
        for part, wanted in mine.lacking(held).items():
            mine = mine.with_content(part, content(wanted))
        assert mine.is_whole()
        assert mine.lacking(held) == {}
        assert fetched == 1 + room.parts.count
        assert mine.means.keys() == held
        with pytest.raises(PeerRefused) as refused:
            content(Row.of(mine.rows[0]).held)
        assert refused.value.reason is Reason.NOT_FOUND, "a result does not have it"
    finally:
        network.close()


def test_means_of_an_exchange_that_broke_are_of_use_if_its_result_is_committed(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    there, held = PartsResults(tmp_path, room.parts, CODEC), room.holding.holds[2]
    there.keep_means(results[2].means)
    told = PartsResult(results[0].rows, {}, {})
    completed = there.completed(told, held)
    assert completed.means.keys() == held
    assert set(completed.lacking(held)) == set(range(room.parts.count)) - held
    there.keep(frozenset({b"another that may be committed"}))
    assert there.completed(told, held).means.keys() == held
    there.keep(frozenset())
    assert not there.completed(told, held).means


def test_weights_of_another_size_are_refused(room: Room, results: list[PartsResult]) -> None:
    held = room.holding.holds[0]
    part = min(results[0].loaded.keys() - held)
    short = {LOADED: results[0].loaded[part][1:]}
    with pytest.raises(PeerRefused, match="another size"):
        results[0].with_content(part, short).numbers(CODEC, room.parts, held)
    assert state_digest(short) != Row.of(results[0].rows[part]).loaded
