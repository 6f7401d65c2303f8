"""Results of which a peer has its part: on disk, to others, and put together again."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest
import torch

from atom.base.errors import PeerRefused, StorageError
from atom.base.reasons import Reason
from atom.swap.held_state import HeldState, StateParts
from atom.swarm.exchange.codec import codec_named
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.fetch import Wanted, fetch
from atom.swarm.state.part_rows import LOADED, Row, rows_of, table_of
from atom.training.exchange import result_of
from atom.training.storage.parts_results import PartsResult, PartsResults
from tests.swarm.local_transport import LocalNetwork
from tests.swarm.threaded_ring import sources
from tests.training.parts_room import LAYOUT, Room

CODEC = codec_named("bfloat16")


@pytest.fixture
def results(room: Room) -> list[PartsResult]:
    """What each has of one round."""
    given = [*sources(3, LAYOUT.trained_elements)]
    return [result_of(*each) for each in room.round(room.holding, [*given], 1, CODEC)]


def of_rank(room: Room, rank: int, folder: Path) -> PartsResults:
    store = room.stores[rank]
    assert store.held is not None
    return PartsResults(folder, store.held, CODEC, lambda part: store.arenas_of(part)[store.loaded])


def stored(room: Room, result: PartsResult, folder: Path, rank: int = 0) -> PartsResults:
    """On disk alone."""
    there = of_rank(room, rank, folder)
    there.hold(result.digest, result)
    there.save(result.digest)
    there.keep(frozenset())
    return there


def test_a_restart_finds_what_it_had(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    digest, held = results[1].digest, room.holding.holds[1]
    there = stored(room, results[1], tmp_path, 1)
    found = there.get(digest)
    assert found is not None
    assert found.lacking(held) == {}
    there.hold(digest, found)
    before = results[1].numbers(CODEC, room.parts, held)
    after = there.numbers(digest)
    for start, stop in room.ranges:
        assert torch.equal(after[start:stop], before[start:stop])
    there.keep(frozenset())
    there.prune({digest})
    part = min(held)
    for path in (there.path(results[1].rows[part].mean), there.path(digest)):
        whole = path.read_bytes()
        for damaged in (b"garbage", whole[:-40], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
            path.write_bytes(damaged)
            found = there.get(digest)
            assert found is None or found.lacking(held).keys() == {part}
        assert (found is None) == (path == there.path(digest))
        path.write_bytes(whole)
    there.prune(frozenset())
    assert not [*tmp_path.iterdir()]


def test_results_of_another_cut_are_none(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    digest = results[0].digest
    stored(room, results[0], tmp_path)
    held = HeldState(StateParts(room.parts.elements, 4096), {})
    other = PartsResults(tmp_path, held, CODEC, lambda part: torch.empty(0))
    with pytest.raises(PeerRefused, match="rows"):
        other.get(digest)


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
        asked = list[bytes]()

        def ask(digest: bytes) -> Mapping[str, torch.Tensor]:
            asked.append(digest)
            return fetch(us, Wanted(digest.hex(), peers, digest, 1 << 24), None)

        digest, held = results[0].digest, room.holding.holds[0]
        ours = of_rank(room, 0, tmp_path / "ours")
        ours.fetch(digest, ask)
        ours.check(digest)
        mine = ours.of(digest)
        assert (mine.digest, mine.lacking(held)) == (digest, {})
        assert len(asked) == 1 + room.parts.count
        assert mine.means.keys() == held
        ours.fetch(digest, ask)
        assert len(asked) == 1 + room.parts.count, "it is all here"
        with pytest.raises(PeerRefused) as refused:
            ask(mine.rows[0].held)
        assert refused.value.reason is Reason.NOT_FOUND, "nobody got it"
    finally:
        network.close()


def test_means_are_on_disk_before_anything_is_made_of_them(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    """So a holder has those of a round that it knows nothing of, after a restart as well; until the
    round is over. A part whose mean is nowhere then comes as what is loaded of it."""
    held, digest, kept = room.holding.holds[2], results[0].digest, room.kept[2]
    means = {row.mean for row in results[0].rows}

    def ask(wanted: bytes) -> Mapping[str, torch.Tensor]:
        """No mean is anywhere."""
        given = (r.contents.get(wanted) for r in results if wanted not in means)
        found = next((content for content in given if content is not None), None)
        if found is None:
            raise PeerRefused(Reason.NOT_FOUND, "a mean")
        return found

    def fetched(there: PartsResults) -> AbstractSet[int]:
        there.fetch(digest, ask)
        assert there.of(digest).lacking(there.of(digest).means.keys()) == {}
        return there.of(digest).means.keys()

    there = of_rank(room, 2, tmp_path)
    there.keep_means(kept)
    there.keep(frozenset({b"another that may be committed"}))
    there.prune(frozenset())
    assert fetched(there) == held
    assert fetched(of_rank(room, 2, tmp_path)) == held
    there.keep(frozenset())
    assert fetched(of_rank(room, 2, tmp_path)) == frozenset()


def test_a_mean_that_an_earlier_result_names_stays(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    """Zeros of what is not trained in two rounds have one name."""
    there, held = stored(room, results[2], tmp_path, 2), room.holding.holds[2]
    there.keep_means(room.kept[2])
    there.keep(frozenset())
    found = there.get(results[2].digest)
    assert found is not None
    assert found.means.keys() == held


def test_means_that_come_while_others_go_stay(
    room: Room, results: list[PartsResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next exchange runs while a snapshot ends."""
    there, look = of_rank(room, 2, tmp_path), Path.glob

    def glob(folder: Path, pattern: str) -> Iterator[Path]:
        there.keep_means(room.kept[2])
        return look(folder, pattern)

    monkeypatch.setattr(Path, "glob", glob)
    there.prune(frozenset())
    assert {path.stem for path in tmp_path.iterdir()} == {name.hex() for name in room.kept[2]}


def test_a_full_disk_breaks_no_exchange(
    room: Room, tmp_path: Path, results: list[PartsResult]
) -> None:
    there = of_rank(room, 2, tmp_path / "gone")
    (tmp_path / "gone").touch()
    there.keep_means(room.kept[2])
    there.hold(results[2].digest, results[2])
    with pytest.raises(StorageError):
        there.save(results[2].digest)


def test_weights_of_another_size_are_refused(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    there, digest = of_rank(room, 0, tmp_path), results[0].digest
    part = min(results[0].loaded)
    for wrong in (results[0].loaded[part][1:], results[0].loaded[part].float()):
        name = results[0].rows[part].loaded
        there.hold(digest, results[0].with_content(part, name, {LOADED: wrong}))
        with pytest.raises(PeerRefused, match="another size"):
            there.check(digest)


def test_what_is_loaded_now_is_served_while_it_is_what_the_table_says(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    there, store = of_rank(room, 0, tmp_path), room.stores[0]
    weights = [store.arenas_of(part)[store.loaded] for part in range(room.parts.count)]
    none = bytes(32)
    rows = tuple(Row(none, state_digest({LOADED: each}), none) for each in weights)
    first = rows[0].loaded
    assert there.served(first) is None
    there.rows = rows
    assert rows_of(there.served(state_digest(table_of(rows))) or {}) == rows
    assert state_digest(there.served(first) or {}) == first
    weights[0][0] += 1.0
    assert state_digest(there.served(first) or {}) == first, "a copy, for who has begun to fetch it"
    there.keep(frozenset())
    assert there.served(first) is None


def test_what_is_loaded_is_not_hashed_anew_for_each_chunk_that_is_asked_for(
    room: Room, tmp_path: Path
) -> None:
    """Nor are more copies kept than two."""
    store, looked = room.stores[0], list[int]()
    assert store.held is not None

    def live(part: int) -> torch.Tensor:
        looked.append(part)
        return store.arenas_of(part)[store.loaded]

    there, none = PartsResults(tmp_path, store.held, CODEC, live), bytes(32)
    named = [state_digest({LOADED: live(part)}) for part in range(room.parts.count)]
    there.rows = tuple(Row(none, each, none) for each in named)
    looked.clear()
    for part in (0, 0, 1, 0, 1, 2, 2, 1, 0):
        assert state_digest(there.served(named[part]) or {}) == named[part]
    assert looked == [0, 1, 2, 0]


def test_means_that_a_full_disk_did_not_take_are_saved_with_their_result(
    room: Room, results: list[PartsResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, result = of_rank(room, 0, tmp_path), results[0]

    def full(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        raise StorageError("no room", "free some")

    with monkeypatch.context() as patch:
        patch.setattr("atom.training.storage.parts_results.write_tensors", full)
        there.keep_means({state_digest(m.arenas): m for m in result.means.values()})
    there.hold(result.digest, result)
    there.save(result.digest)
    there.keep(frozenset())
    found = there.get(result.digest)
    assert found is not None
    assert found.means.keys() == result.means.keys()


def test_what_a_power_cut_damaged_is_whole_once_its_result_is_saved_again(
    room: Room, results: list[PartsResult], tmp_path: Path
) -> None:
    """Fetched from others; else the next restart would miss it again, and who asks get garbage."""
    there, result = stored(room, results[1], tmp_path, 1), results[1]
    for name in result.contents:
        there.path(name).write_bytes(b"garbage")
    assert there.get(result.digest) is None
    there.keep_means({state_digest(m.arenas): m for m in result.means.values()})
    there.hold(result.digest, result)
    there.save(result.digest)
    there.keep(frozenset())
    found = there.get(result.digest)
    assert found is not None
    assert found.contents.keys() == result.contents.keys()
