"""One way to apply a commit, whatever led to it: live, missed, or replayed from disk."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.catching_peer import Make, Peer, peer_of
from tests.training.executor_stage import BALLOT, Stage
from tests.training.small_history import ROUNDS, run

__all__ = ["peer_of"]


def hold(peer: Peer, digest: bytes) -> None:
    """Put a result of the history into memory, as an exchange does."""
    named = {run().result_digest(number): each for number, each in enumerate(run().results)}
    peer.results.hold(digest, named[digest])


def begin_step(peer: Peer, number: int) -> None:
    commit = run().commits[number - 1]
    hold(peer, commit.value.result_digest)
    assert peer.shared.apply(commit) == peer.shared.head == run().heads[number]


def is_at_after_a_restart(peer: Peer, number: int) -> bool:
    again = Peer(peer.folder)
    again.recovery.restore()
    again.close()
    return again.at(number)


def test_live_and_missed_rounds_leave_the_same_state_and_disk(peer_of: Make) -> None:
    live, missed = peer_of(at=0), peer_of(at=0)
    for number in range(1, ROUNDS + 1):
        begin_step(live, number)
        live.shared.finish()
    missed.shared.replay(run().commits, lambda digest: hold(missed, digest))
    for peer in (live, missed):
        assert peer.at(ROUNDS)
        assert is_at_after_a_restart(peer, ROUNDS)


def test_a_step_that_a_crash_prevents_is_taken_by_the_restart(
    peer_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the replay needs is on disk before the step begins."""
    peer = peer_of(at=1)

    def crash(*step: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(peer.replica, "begin_step", crash)
    with pytest.raises(KeyboardInterrupt):
        begin_step(peer, 2)
    assert peer.shared.head == run().heads[1], "what was counted does not belong to the next head"
    assert is_at_after_a_restart(peer, 2)


def test_a_missed_round_with_our_part_makes_up_for_what_its_codec_took(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    try:
        stage.train()
        stage.on_worker(stage.shared.offer)
        stage.shared.give(stage.start.digest, BALLOT)
        commit = stage.commit(stage.hold(1.0))
        commit = replace(commit, value=replace(commit.value, origin=BALLOT))
        counted = list[int]()

        def replay() -> None:
            stage.shared.replay([commit], lambda digest: None)
            counted.append(stage.shared.sequences_at(stage.journal.head.digest))

        stage.on_worker(replay)  # the next pass may begin right after it
        assert stage.replica.knew_lost
        assert counted == [0]
    finally:
        stage.close()
