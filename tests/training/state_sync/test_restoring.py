"""From our own disk: the very state that the chain names, or nothing."""

from collections.abc import Sequence

import pytest

from atom.base.errors import PeerRefused
from atom.training.storage.run_storage import list_snapshots, write_snapshot
from tests.training.small_history import ROUNDS, run
from tests.training.state_sync.catching_peer import Make, peer_of

__all__ = ["peer_of"]

ALL = range(1, ROUNDS + 1)


@pytest.mark.parametrize(
    ("knows_start", "results", "snapshots", "reached", "told"),
    [
        (False, [4, 5], [1, 3], 5, [(0, 2), (1, 2), (2, 2)]),
        (True, [3, 5], [2], 3, [(0, 3), (1, 3), (1, 0)]),
        (True, ALL, [], 5, [(number, 5) for number in range(6)]),
    ],
    ids=["a snapshot and the results since", "a missing result", "the first state"],
)
def test_the_newest_state_that_can_be_rebuilt_is_and_the_journal_is_cut_there(
    peer_of: Make,
    knows_start: bool,
    results: Sequence[int],
    snapshots: Sequence[int],
    reached: int,
    told: list[tuple[int, int]],
) -> None:
    peer = peer_of(knows_start)
    peer.store(ROUNDS, results, snapshots)
    peer.state_sync.restore()
    assert peer.at(reached)
    assert peer.told == told


def test_nothing_at_hand_is_not_usable(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    peer.store(3, [1, 2, 3])
    peer.state_sync.restore()
    assert not peer.state_sync.usable
    assert peer.journal.head == run().heads[0]
    assert peer.run() == "no donors"


def test_who_ends_meanwhile_breaks_off_and_keeps_its_disk(peer_of: Make) -> None:
    """Replaying may take minutes, and a leave has a deadline."""
    peer = peer_of()
    peer.store(ROUNDS, ALL)
    peer.on_told = lambda done: peer.donors.stop.set() if done == 2 else None
    for told in ([(0, 5), (1, 5), (2, 5), (2, 0)], []):
        with pytest.raises(PeerRefused, match="this peer ends"):
            peer.state_sync.restore()
        assert peer.told == told
        assert peer.journal.head == run().heads[ROUNDS]
        peer.told.clear()


@pytest.mark.parametrize("left_bytes", [None, 100])
def test_a_damaged_snapshot_falls_back_to_the_one_before(
    peer_of: Make, left_bytes: int | None
) -> None:
    peer = peer_of(knows_start=False)
    peer.store(ROUNDS, range(2, 6), snapshots=[1, 4])
    newest = list_snapshots(peer.snapshots)[0].path
    raw = bytearray(newest.read_bytes())
    raw[-5] ^= 0x40
    newest.write_bytes(raw[:left_bytes])
    peer.state_sync.restore()
    assert peer.at(ROUNDS)
    told = [{"event": "snapshot-damaged", "path": newest.name}]
    assert peer.events.events == (told if left_bytes is None else [])


@pytest.mark.parametrize(
    ("number", "head", "state"),
    [(2, b"x" * 32, 3), (-1, None, 3), (9, None, 3), (4, None, 2)],
    ids=["another branch's", "a round that cannot be", "nor this one", "not what was certified"],
)
def test_a_snapshot_that_the_chain_contradicts_does_not_count(
    peer_of: Make, number: int, head: bytes | None, state: int
) -> None:
    peer, story = peer_of(), run()
    peer.store(ROUNDS, ALL)
    name = head or story.heads[min(number, ROUNDS)].digest
    write_snapshot(peer.snapshots, number, name, story.digest(state), story.states[state])
    peer.state_sync.restore()
    assert peer.at(ROUNDS)
