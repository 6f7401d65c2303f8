"""State from our own disk and from other peers: always the exact state of the chain, by the
shortest route."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from atom.base.errors import PeerRefused
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import Content, plain_bytes
from atom.swarm.stream.frames import Pace
from atom.training import recovery
from atom.training.storage.run_storage import list_snapshots, write_snapshot
from tests.swarm.means import encoded
from tests.swarm.trickle import Trickle
from tests.training.catching_peer import Make, Peer, Served, peer_of, state_name
from tests.training.small_history import ROUNDS, chain_bytes, run

__all__ = ["peer_of"]

ALL = range(1, ROUNDS + 1)


# ---- from our own disk


@pytest.mark.parametrize(
    ("knows_start", "results", "snapshots", "reached", "told"),
    [
        # a snapshot and the results since
        (False, [4, 5], [1, 3], 5, [(0, 2), (1, 2), (2, 2)]),
        (True, [3, 5], [2], 3, [(0, 3), (1, 3), (1, 0)]),  # a missing result
        (True, ALL, [], 5, [(number, 5) for number in range(6)]),  # the first state
    ],
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
    peer.recovery.restore()
    assert peer.at(reached)
    assert peer.told == told


def test_nothing_at_hand_is_not_usable(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    peer.store(3, [1, 2, 3])
    peer.recovery.restore()
    assert not peer.shared.usable
    assert peer.journal.head == run().heads[0]
    assert peer.run() == "no donors"


def test_who_ends_meanwhile_breaks_off_and_keeps_its_disk(peer_of: Make) -> None:
    """Replaying may take minutes, and a leave has a deadline."""
    peer = peer_of()
    peer.store(ROUNDS, ALL)
    peer.on_told = lambda done: peer.donors.stop.set() if done == 2 else None
    for told in ([(0, 5), (1, 5), (2, 5), (2, 0)], []):
        with pytest.raises(PeerRefused, match="this peer ends"):
            peer.recovery.restore()
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
    peer.recovery.restore()
    assert peer.at(ROUNDS)
    told = [{"event": "snapshot-damaged", "path": newest.name}]
    assert peer.events.events == (told if left_bytes is None else [])


@pytest.mark.parametrize(
    ("number", "head", "state"),
    [
        (2, b"x" * 32, 3),  # another branch's
        (-1, None, 3),  # a round that cannot be
        (9, None, 3),
        (4, None, 2),  # not the certified state
    ],
)
def test_a_snapshot_that_the_chain_contradicts_does_not_count(
    peer_of: Make, number: int, head: bytes | None, state: int
) -> None:
    peer, story = peer_of(), run()
    peer.store(ROUNDS, ALL)
    name = head or story.heads[min(number, ROUNDS)].digest
    write_snapshot(peer.snapshots, number, name, story.digest(state), story.states[state])
    peer.recovery.restore()
    assert peer.at(ROUNDS)


# ---- one way to apply a commit: live, missed, or replayed from disk


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


# ---- from others: which way


@pytest.mark.parametrize(
    ("at", "offers", "results", "asked"),
    [
        (2, [4], ALL, []),  # three results are as many bytes as a state
        (1, [4], ALL, [4]),  # four are more
        (1, [1], ALL, []),  # no newer state
        (2, [1, 3], [4, 5], [3]),  # results are gone
        (0, [], ALL, []),  # no peer has a state
        (None, [2, 5], ALL, [5, 2]),  # no commit vouches for the newest
        (None, [0], ALL, [0]),  # no own state
    ],
)
def test_few_missed_rounds_are_replayed_and_more_are_a_state_and_the_rounds_since(
    peer_of: Make, at: int | None, offers: Sequence[int], results: Sequence[int], asked: list[int]
) -> None:
    peer, served = peer_of(knows_start=at is not None, at=at), Served(offers, results)
    assert peer.run(served) == ""
    assert peer.at(ROUNDS)
    taken = [number for number in asked if number != ROUNDS]
    assert served.asked_for("state/") == list(map(state_name, taken))
    assert list(peer.downloads.glob("*")) == []


def test_a_state_not_to_be_trusted_is_replaced_and_another_left_alone(peer_of: Make) -> None:
    peer, served = peer_of(at=ROUNDS), Served(offers=[4])
    assert "nothing better" in peer.run(served)
    peer.replica.state_arenas()["master"][3] += 1
    assert peer.run(served, discard=True) == ""
    assert peer.at(ROUNDS)


def test_what_was_committed_meanwhile_is_a_matter_of_results(peer_of: Make) -> None:
    """Each chase begins where the one before ended: the state is fetched once."""
    peer, served = peer_of(knows_start=False), Served(offers=[1, 2])
    for reached in (3, 4, 5):
        served.chain = run().chain(reached)
        peer.run(served)
        assert peer.at(reached)
    assert served.asked_for("state/") == [state_name(2)]


def test_without_the_results_since_the_snapshot_it_stays_whole(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    assert "not-found" in peer.run(Served(offers=[2], results=[3]))
    assert peer.at(3), "what was proven is kept"


def test_a_catch_up_in_vain_leaves_what_was_averaged_and_names_nobody(peer_of: Make) -> None:
    """The peer may have voted for the result, which no other peer has any more."""
    peer, result = peer_of(at=1), encoded(torch.ones(32))
    peer.results.hold(b"r" * 32, result)
    assert "no known address" in peer.recovery.run(["gone"], discard=False)
    peer.recovery.fetch_result(b"r" * 32, [])
    assert peer.results.get(b"r" * 32) is result
    assert peer.liars == []
    assert peer.recovery.run(["gone", peer.door(Served())], discard=False) == ""
    assert peer.at(ROUNDS)


def test_a_result_that_says_nothing_is_not_replayed(peer_of: Make) -> None:
    """However many accepted it: they might be in league. A step on it would leave no state."""
    peer, honest = peer_of(at=1), run().results[2]
    nothing = replace(honest, wires=torch.full_like(honest.wires, 0xFF))
    peer.results.hold(run().result_digest(2), nothing)
    assert "not-finite" in peer.recovery.run([peer.door(Served())], discard=False)
    assert peer.at(1)


# ---- the chain


def test_of_two_asked_at_once_the_slower_takes_nothing_back(peer_of: Make) -> None:
    peer, fast = peer_of(at=0), Served()

    class Slow(Served):
        def content_of(self, name: str) -> Content | None:
            if name == "chain/2":
                assert peer.proven_head(peer.door(fast)) == run().heads[-1]
                raise ConnectionError("gone")
            return super().content_of(name)

    with pytest.raises(ConnectionError):
        peer.proven_head(peer.door(Slow()))
    fast.asked.clear()
    assert peer.proven_head(peer.door(fast)) == run().heads[-1]
    assert fast.asked == ["chain/5", "chain/4"], "its end, and that it is the end"


def test_a_chain_that_trickles_is_given_up_and_what_was_checked_is_kept(
    peer_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page comes in time; the next donor is asked for the rest."""
    monkeypatch.setattr(recovery, "UNCHECKED_PACE", Pace(slack_s=2.0, bytes_per_s=math.inf))
    peer, slow, honest = peer_of(), Served(), Served(offers=[3])
    peer.door(slow, Trickle(len(run().chain(2)), 200))
    assert "no byte arrived for too long" in peer.run(slow)
    assert peer.run(honest) == ""
    assert peer.at(ROUNDS)
    assert honest.asked[0] != "chain/0"
    assert peer.liars == [], "slow is no lie"


def test_a_chain_that_parts_from_ours_is_fetched_from_there(peer_of: Make) -> None:
    peer, served = peer_of(at=2), Served(offers=[4])
    peer.journal.append(run().branch(2))
    assert peer.run(served) == ""
    assert peer.at(ROUNDS)
    assert served.asked_for("chain/") == ["chain/3", "chain/2", "chain/4", "chain/5"]


def test_a_better_head_that_nobody_can_bring_us_to_keeps_nobody_from_another(peer_of: Make) -> None:
    """The peer with the last result is gone; the other peers continued without it."""
    peer, story = peer_of(at=2), run()
    last = story.commits[-1].value
    branch = story.branch(4, result_digest=last.result_digest, gradient_norm=last.gradient_norm)
    lost, going = Served(results=[3, 4]), Served()
    going.chain = chain_bytes([*story.commits[:4], branch])
    assert "not-found" in peer.run(lost)
    assert peer.at(4)
    assert peer.proven_head(peer.door(going)).branches
    assert peer.run(going) == ""
    assert peer.journal.head == story.heads[4].after(branch.value)


# ---- the state


def test_a_half_fetched_state_is_finished_first_and_one_not_offered_goes(peer_of: Make) -> None:
    peer, served = peer_of(knows_start=False), Served(offers=[3, 4], results=[])
    begun, old = (peer.downloads / run().heads[number].digest.hex()[:16] for number in (3, 2))
    for folder in (begun, old):
        folder.mkdir(parents=True)
    assert peer.run(served)
    assert served.asked_for("state/") == [state_name(3)]
    assert (begun.exists(), old.exists()) == (True, False)


def test_without_room_for_the_state_it_waits_and_says_so(peer_of: Make) -> None:
    peer, served = peer_of(knows_start=False), Served(offers=[4])
    peer.downloads.write_text("in the way")
    assert "cannot write into" in peer.run(served)
    assert not peer.shared.usable
    assert peer.events.events[-1]["what"] == "downloads"
    assert peer.storage.room.paused.keys() == {"downloads"}
    assert peer.liars == []
    peer.downloads.unlink()
    assert peer.run(served) == ""
    assert peer.at(ROUNDS)
    assert peer.storage.room.paused == {}, "nothing waits for room any more"


@pytest.mark.parametrize("discard", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_who_ends_or_loses_its_donors_while_it_asks_for_states_keeps_its_own(
    peer_of: Make, ends: bool, discard: bool
) -> None:
    """The state may be the only remaining part of the run."""

    class Ending(Served):
        def content_of(self, name: str) -> Content | None:
            if not name.startswith("chain/"):
                if ends:
                    peer.donors.stop.set()
                raise ConnectionError("gone")
            return super().content_of(name)

    peer = peer_of(at=2)
    if not discard:
        peer.journal.append(run().branch(2))
    served = Ending()
    served.chain = run().chain(2) if discard else served.chain
    reached, state = peer.journal.head, state_digest(peer.replica.state_arenas())
    assert peer.run(served, discard=discard)
    assert peer.shared.usable
    assert peer.journal.head == reached
    assert state_digest(peer.replica.state_arenas()) == state


# ---- donors that lie


def forged(served: Served) -> None:
    """Named voters, other signatures. What else is no chain: tests/swarm/chain."""
    last = run().commits[4]
    stranger = run().branch(4, voters_next=last.value.voters_next).votes[0].signature
    votes = tuple(type(each)(each.voter, stranger) for each in last.votes)
    served.chain = chain_bytes([*run().commits[:4], type(last)(last.value, last.ballot, votes)])


def another_state(served: Served) -> None:
    served.offer(3)
    served.contents[state_name(3)] = run().states[2]


def another_model(served: Served) -> None:
    served.offer(3)
    served.contents[state_name(3)] = {"master": torch.zeros(1 << 20)}


@pytest.mark.parametrize("lie", [forged, another_state, another_model])
def test_a_liar_is_named_costs_few_pages_and_keeps_us_from_nobody(peer_of: Make, lie: type) -> None:
    peer, liar = peer_of(knows_start=False), Served()
    lie(liar)
    assert peer.run(liar)
    assert peer.liars == [peer.door(liar)]
    assert len(liar.asked_for("chain/")) <= 1 + ROUNDS
    assert not peer.shared.usable
    assert peer.journal.head == run().heads[0]
    assert peer.run(liar, Served(offers=[2])) == ""
    assert peer.at(ROUNDS)


@pytest.mark.parametrize("listed", [b"", b"[[1,2]]", b"x" * 300_000])
def test_a_nonsensical_list_is_passed_over(peer_of: Make, listed: bytes) -> None:
    peer, odd = peer_of(knows_start=False), Served()
    odd.contents["snapshots"] = plain_bytes(listed)
    assert peer.run(odd)
    assert peer.run(odd, Served(offers=[3])) == ""
    assert peer.at(ROUNDS)


def test_a_first_state_that_is_not_the_manifest_s_is_not_taken(peer_of: Make) -> None:
    """No commit names the state of round 0; a peer that cannot make that state would begin with a
    false one."""
    peer, liar, honest = peer_of(knows_start=False), Served(offers=[0]), Served(offers=[0])
    liar.chain = honest.chain = b""
    liar.contents[state_name(0)] = run().states[1]
    assert "hash-mismatch" in peer.run(liar, discard=True)
    assert not peer.shared.usable
    assert peer.run(honest, discard=True) == ""
    assert peer.at(0)
