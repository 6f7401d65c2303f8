"""From our own disk: the very state that the chain names, or nothing."""

import pytest

from atom.base.errors import PeerRefused
from atom.swarm.state.arenas import state_digest
from atom.training.storage.run_storage import list_snapshots, write_snapshot
from tests.training.small_history import ROUNDS, run
from tests.training.state_sync.catching_peer import Make, peer_of

__all__ = ["peer_of"]


def test_a_snapshot_and_the_results_since_restore_the_state(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    peer.store(ROUNDS, [4, 5], snapshots=[1, 3])
    peer.state_sync.restore()
    assert peer.at(ROUNDS)
    assert peer.told == [(0, 2), (1, 2), (2, 2)]


def test_a_missing_result_cuts_the_journal_there(peer_of: Make) -> None:
    peer = peer_of()
    peer.store(ROUNDS, [3, 5], snapshots=[2])
    peer.state_sync.restore()
    assert peer.at(3)
    assert peer.told == [(0, 3), (1, 3), (1, 0)], "it breaks off there"


def test_who_ends_meanwhile_breaks_off_and_keeps_its_disk(peer_of: Make) -> None:
    """Replaying may take minutes, and a leave has a deadline."""
    peer = peer_of()
    peer.store(ROUNDS, range(1, 6))
    peer.on_told = lambda done: peer.donors.close() if done == 2 else None
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


@pytest.mark.parametrize(("number", "strange"), [(2, True), (-1, False), (9, False)])
def test_a_snapshot_of_another_branch_does_not_count(
    peer_of: Make, number: int, strange: bool
) -> None:
    """Nor one that says of itself a round that cannot be."""
    peer = peer_of()
    peer.store(2, [1, 2])
    head = b"x" * 32 if strange else run().heads[2].digest
    write_snapshot(peer.snapshots, number, head, run().digest(3), run().states[3])
    peer.state_sync.restore()
    assert peer.at(2)


def test_a_state_that_the_next_commit_contradicts_does_not_count(peer_of: Make) -> None:
    peer = peer_of()
    peer.store(ROUNDS, range(1, 6))
    wrong = run().states[2]
    write_snapshot(peer.snapshots, 4, run().heads[4].digest, state_digest(wrong), wrong)
    peer.state_sync.restore()
    assert peer.at(ROUNDS)


def test_nothing_at_hand_is_not_usable(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    peer.store(3, [1, 2, 3])
    peer.state_sync.restore()
    assert not peer.state_sync.usable
    assert peer.journal.head == run().heads[0]
    assert peer.run() == "no donors"
