"""From others: always the very state the chain names, by the shortest way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from atom.base.reasons import Reason
from atom.swarm.state.arenas import state_digest
from tests.training.small_history import (
    ROUNDS,
    VOTERS,
    chain_bytes,
    run,
    signed,
    value_on,
)
from tests.training.state_sync.catching_peer import FakeDonors, Make, Peer, Served, peer_of

__all__ = ["peer_of"]


def test_falls_back_to_a_snapshot_where_results_are_gone(peer_of: Make) -> None:
    peer = peer_of(at=2)
    donors = FakeDonors({"a": Served(offers=[1, 3], results=[4, 5])})
    peer.with_donors(donors).usable = True
    peer.state_sync.run(("a",), discard=False)
    assert peer.at(ROUNDS)
    assert donors.asked == [3]
    assert donors.kept == set(), "downloads are gone"
    assert peer.told == [(0, 3), (0, 0), (0, 2), (1, 2), (2, 2)], "what failed is over, too"


def test_a_first_state_that_is_not_the_manifest_s_is_not_taken(peer_of: Make) -> None:
    """At round 0 no commit names the state; whoever cannot make it would begin with a lie."""
    peer, liar, honest = peer_of(knows_start=False), Served(offers=[0]), Served(offers=[0])
    liar.chain = honest.chain = b""
    liar.states = {0: run().states[1]}
    peer.state_sync.restore()
    peer.with_donors(FakeDonors({"a": liar}))
    assert "hash-mismatch" in peer.state_sync.run(("a",), discard=True)
    assert not peer.state_sync.usable
    peer.with_donors(FakeDonors({"b": honest}))
    peer.state_sync.run(("b",), discard=True)
    assert peer.at(0)


def test_a_state_not_to_be_trusted_is_replaced(peer_of: Make) -> None:
    peer = peer_of(at=ROUNDS)
    peer.replica.state_arenas()["master"][3] += 1
    peer.with_donors(FakeDonors({"a": Served(offers=[4])})).usable = True
    peer.state_sync.run(("a",), discard=True)
    assert peer.at(ROUNDS)


def test_nothing_better_changes_nothing(peer_of: Make) -> None:
    peer = peer_of(at=ROUNDS)
    peer.with_donors(FakeDonors({"a": Served(offers=[4])})).usable = True
    assert "nothing better" in peer.state_sync.run(("a",), discard=False)
    assert peer.at(ROUNDS)


def test_a_catch_up_in_vain_leaves_what_was_averaged_here(peer_of: Make) -> None:
    """Perhaps we voted for it, and nobody else has it any more."""
    peer = peer_of(at=1)
    peer.with_donors(FakeDonors({})).usable = True
    digest, result = b"r" * 32, torch.ones(peer.replica.gradients.numel())
    peer.results.hold(digest, result)
    assert peer.state_sync.run(("a",), discard=False)
    assert torch.equal(peer.state_sync.fetch_result(digest, []), result)


def test_a_result_that_was_fetched_is_held(peer_of: Make) -> None:
    peer, served = peer_of(at=1), Served()
    peer.with_donors(FakeDonors({"a": served}))
    digest = list(served.results)[-1]
    fetched = peer.state_sync.fetch_result(digest, ["a"])
    assert peer.results.get(digest) is fetched


def test_a_result_of_a_round_that_is_over_is_not_held_anew(
    peer_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory may be another ring's by then."""
    peer, digest = peer_of(at=1), b"r" * 32
    peer.results.hold(digest, peer.results.buffer())
    found = peer.results.get

    def get(name: bytes) -> torch.Tensor | None:
        result = found(name)
        peer.results.release()  # the round ends at this very moment
        return result

    monkeypatch.setattr(peer.results, "get", get)
    assert peer.state_sync.fetch_result(digest, []) is peer.results.buffer()
    assert found(digest) is None


def test_whoever_cannot_be_reached_is_not_a_liar(peer_of: Make) -> None:
    peer, donors = peer_of(at=1), FakeDonors({"b": Served()})
    peer.with_donors(donors).usable = True
    assert "gone" in peer.state_sync.run(("a",), discard=False)
    assert donors.liars == []
    peer.state_sync.run(("a", "b"), discard=False)
    assert peer.at(ROUNDS)


def test_who_goes_on_after_it_has_proven_its_claim_is_followed_to_where_it_is(
    peer_of: Make,
) -> None:
    """By then it serves neither the results up to the proven head nor a state before it."""
    peer, served = peer_of(at=1), Served(offers=[4], results=[5])
    donors, served.chain = FakeDonors({"a": served}), run().chain(2)
    peer.with_donors(donors).usable = True
    assert peer.state_sync.proven_head("a") == run().heads[2]
    served.chain = run().chain(ROUNDS)
    assert peer.state_sync.run(("a",), discard=False) == ""
    assert peer.at(ROUNDS)
    assert donors.asked == [4]


def test_of_two_asked_at_once_the_slower_takes_nothing_back(peer_of: Make) -> None:
    class Slow(FakeDonors):
        @contextmanager
        def chain(self, peer_id: str) -> Iterator[Callable[[int], bytes]]:
            def slowly(since: int) -> bytes:
                if since:
                    assert peer.state_sync.proven_head("fast") == run().heads[-1]
                    raise ConnectionError("gone")
                return ask(since)

            with super().chain(peer_id) as ask:
                yield slowly if peer_id == "slow" else ask

    peer, donors = peer_of(at=0), Slow({"slow": Served(), "fast": Served()})
    with pytest.raises(ConnectionError):
        peer.with_donors(donors).proven_head("slow")
    donors.chain_bytes.clear()
    assert peer.state_sync.proven_head("fast") == run().heads[-1]
    assert len(donors.chain_bytes) == 2, "its end, and that it is the end"


def test_without_the_results_since_the_snapshot_it_stays_whole(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    peer.with_donors(FakeDonors({"a": Served(offers=[2], results=[3])}))
    assert "results since" in peer.state_sync.run(("a",), discard=False)
    assert peer.at(3), "what was proven is kept"


def test_a_half_fetched_state_is_finished_first(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    donors = FakeDonors({"a": Served(offers=[3, 4])})
    donors.begun = {3}
    peer.with_donors(donors).run(("a",), discard=False)
    assert peer.at(ROUNDS)
    assert donors.asked == [3]


def test_a_fetch_that_breaks_off_keeps_what_it_has_while_another_state_is_tried(
    peer_of: Make,
) -> None:
    """What broke it off, an outage or the owner, may break off the next one as well."""

    peer, served = peer_of(knows_start=False), Served(offers=[2, 3, 4])
    served.states = {2: served.states[2]}
    donors = FakeDonors({"a": served})
    peer.with_donors(donors).run(("a",), discard=False)
    assert donors.asked == [4, 3, 2]
    assert donors.kept_when_asked == [{4}, {4, 3}, {4, 2}]
    assert donors.kept == set(), "in the end there is a state"


def test_without_room_a_state_is_fetched_into_memory(peer_of: Make) -> None:
    peer = peer_of(knows_start=False)
    donors = FakeDonors({"a": Served(offers=[4])})
    donors.room = 0
    peer.with_donors(donors).run(("a",), discard=False)
    assert peer.at(ROUNDS)
    assert peer.events.events[0]["what"] == "downloads"
    assert peer.storage.room.paused == {}, "nothing waits for room any more"


def test_a_state_begun_earlier_gives_its_room_to_the_one_that_is_fetched(peer_of: Make) -> None:
    """With room for one only, the other need not be fetched into memory: nothing resumes it."""
    peer, served = peer_of(knows_start=False), Served(offers=[3, 4])
    del served.states[4]
    donors = FakeDonors({"a": served})
    donors.room = 1
    peer.with_donors(donors).run(("a",), discard=False)
    assert peer.at(ROUNDS)
    assert donors.kept_when_asked == [{4}, {3}]
    assert not any(event["event"] == "disk-full" for event in peer.events.events)


def test_what_was_committed_meanwhile_is_a_matter_of_results(peer_of: Make) -> None:
    """Each chase begins where the one before ended: the state is fetched once."""
    peer, story = peer_of(knows_start=False), run()
    donors = FakeDonors({"a": Served(offers=[1, 2])})
    peer.with_donors(donors)
    for reached in (3, 4, 5):
        donors.table["a"].chain = story.chain(reached)
        peer.state_sync.run(("a",), discard=False)
        assert peer.at(reached)
    assert donors.asked == [2]


def test_a_better_head_that_nobody_can_bring_us_to_keeps_nobody_from_another(
    peer_of: Make,
) -> None:
    """Whoever had the last result is gone; the others went on without it."""
    peer, story = peer_of(at=2), run()
    last = story.commits[-1].value
    value = value_on(story.heads[4], last.result_digest, last.gradient_norm, story.digest(4))
    branch = signed(story.heads[4], replace(value, survivors=VOTERS[:1]))
    lost, going = Served(results=[3, 4]), Served(results=[3, 4])
    going.chain, going.results = chain_bytes([*story.commits[:4], branch]), story.results
    donors = FakeDonors({"lost": lost})
    peer.with_donors(donors).usable = True
    assert "results since" in peer.state_sync.run(("lost",), discard=False)
    assert peer.at(4)
    donors.table = {"going": going}
    assert peer.state_sync.proven_head("going").branches
    assert peer.state_sync.run(("going",), discard=False) == ""
    assert peer.journal.head == story.heads[4].after(branch.value)


def on_a_branch(peer: Peer) -> Peer:
    story = run()
    value = value_on(story.heads[2], b"r" * 32, 1.0, story.digest(2), sequences=1)
    branch = signed(story.heads[2], replace(value, survivors=VOTERS[:1]))
    for commit in (*story.commits[:2], branch):
        peer.journal.append(commit)
    return peer


def test_a_chain_that_parts_from_ours_is_fetched_from_there(peer_of: Make) -> None:
    peer, story = on_a_branch(peer_of()), run()
    donors = FakeDonors({"a": Served(offers=[4])})
    peer.with_donors(donors).run(("a",), discard=False)
    assert peer.at(ROUNDS)
    sizes = [len(story.chain(number)) for number in range(ROUNDS + 1)]
    parts = [(3, 5), (2, 4), (4, 5), (5, 5)]
    assert donors.chain_bytes == [sizes[until] - sizes[since] for since, until in parts]


@pytest.mark.parametrize(
    ("reason", "discard"),
    [(Reason.SUPERSEDED, False), (Reason.SUPERSEDED, True), (Reason.UNREACHABLE, False)],
)
def test_who_ends_or_loses_its_donors_while_it_asks_for_states_keeps_its_own(
    peer_of: Make, reason: Reason, discard: bool
) -> None:
    """It may be all that is left of the run."""

    class Ending(FakeDonors):
        def _offers(self, peer_id: str) -> list[bytes]:
            self.table.clear()
            self.closed = reason is Reason.SUPERSEDED
            return []

    story = run()
    peer = peer_of(at=2) if discard else on_a_branch(peer_of())
    reached, state = peer.journal.head, state_digest(peer.replica.state_arenas())
    served = Served()
    if discard:
        served.chain = story.chain(2)
    peer.with_donors(Ending({"a": served})).usable = True
    assert peer.state_sync.run(("a",), discard)
    assert peer.state_sync.usable
    assert peer.journal.head == reached
    assert state_digest(peer.replica.state_arenas()) == state
