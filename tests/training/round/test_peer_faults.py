"""Peers that a replica continues without or waits for: failed peers, heads without decisions, and
long passes."""

from dataclasses import replace

import pytest
from shown_leases import A, B, C, D, E, head_of, lease, view

from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import PeerState
from atom.training.round.attempt import Pair, Stage
from atom.training.round.election import HOLD_OUT, LeaderElection
from atom.training.round.events import Phase, View
from atom.training.round.faults import (
    FIRST_EXCLUSION_S,
    UnreliablePeers,
    culprits,
)
from atom.training.round.round_state import RoundContext, RoundState, RoundTerms

HEAD = head_of(A, B, C)
a, b, c = A.peer_id, B.peer_id, C.peer_id


def context_of(*others: Voter) -> RoundContext:
    """A's, with the leases of these."""
    terms, state = RoundTerms(8), RoundState(HEAD, b"s" * 32, 0.0)
    context = RoundContext(A, terms, lambda domain, payload: b"", state)
    context.view = replace(view(*map(lease, others)), sequences=8)
    return context


def way(one: Voter, other: Voter) -> Pair:
    first, second = sorted((one.peer_id, other.peer_id))
    return first, second


# ---- peers


@pytest.mark.parametrize("stage", Stage)
def test_who_fails_is_excluded_until_it_does_what_it_owes(stage: Stage) -> None:
    peers = UnreliablePeers(context_of(B, C))
    peers.fail([c], stage)
    assert (peers.excluded, peers.owing) == ({c}, {C})
    for done in Stage:
        made_good = done >= stage
        peers.forgive(c, done)
        assert (peers.excluded == set()) == made_good


def test_nobody_is_excluded_for_ever_and_who_averages_with_us_is_forgiven() -> None:
    context = context_of(B, C)
    peers = UnreliablePeers(context)
    for seconds in (FIRST_EXCLUSION_S, 2 * FIRST_EXCLUSION_S):
        peers.fail([c], Stage.RING)
        peers.fail([c], Stage.RING)
        context.now += seconds - 0.1
        assert peers.excluded == {c}, "the head does not matter"
        context.now += 0.1
        assert peers.excluded == set(), "one failure while it is excluded is as good as ten"
    peers.fail([c], Stage.RING)
    peers.new_head({a, c})
    assert peers.excluded == peers.owing == set()


@pytest.mark.parametrize(
    ("ways", "found"),
    [
        # unseen
        ([], set()),
        # one way
        ([way(B, C)], set()),
        # two broken ways have one end in common
        ([way(B, C), way(A, C)], {c}),
        # it is an end of most of them
        ([way(B, C), way(A, B), way(B, C)], {b}),
        # it says itself that it failed
        ([(c, c)], {c}),
        # either end may be at fault: we suspect the other one, not ourselves
        ([way(A, C), way(A, C)], {c}),
        # only our own end is common to both
        ([way(A, B), way(A, C)], {a}),
        # three peers reach neither of two others
        ([(x, y) for x in ("d", "e", "f") for y in ("x", "y")], {"x", "y"}),
    ],
)
def test_who_is_at_fault_is_what_broken_ways_have_in_common(
    ways: list[Pair], found: set[str]
) -> None:
    assert culprits(ways, a) == found


def test_where_one_way_broke_the_two_are_kept_apart_and_not_put_excluded() -> None:
    context = context_of(B, C)
    peers = UnreliablePeers(context)
    assert not peers.apart
    peers.broke({way(B, C)}, members=3)
    assert (peers.excluded, peers.apart) == (set(), [way(B, C)])
    peers.new_head(set())
    peers.broke({way(A, C)}, members=3)
    assert peers.excluded == set(), "of another round"
    peers.broke({way(B, C)}, members=3)
    assert peers.excluded == {c}
    peers.broke((), members=3)
    assert len(peers.apart) == 3, "by parts, though nobody saw where"
    context.now += 600.0
    assert not peers.apart


@pytest.mark.parametrize(
    ("failed_before", "we"),
    [({}, False), ({c: Stage.PREPARE}, True), ({c: Stage.RING}, False)],
    ids=["only it", "others do not answer", "others were seen to fail"],
)
def test_two_have_no_way_round_each_other_and_who_failed_before_says_which_end_is_bad(
    failed_before: dict[str, Stage], we: bool
) -> None:
    peers = UnreliablePeers(context_of(B, C))
    for peer, stage in failed_before.items():
        peers.fail([peer], stage)
    peers.broke({way(A, B)}, members=2)
    assert (peers.we_fail, b in peers.excluded) == (we, not we)


# ---- heads at which nothing is decided


class Waiting:
    """We, at a head at which nothing is decided."""

    def __init__(self) -> None:
        self.context = context_of(B, C)
        self.peers = UnreliablePeers(self.context)
        self.election = LeaderElection(self.context, self.peers)

    def wait(self, limits: float) -> float:
        """Let these parts of the time limit pass; return how often over the head is overdue."""
        for _ in range(round(limits * LIMIT_S / 0.5)):
            self.context.now += 0.5
            self.election.come()
            self.election.watch(leading=False, passed=0.5)
        return self.context.state.overdue

    def given_up(self) -> set[Voter]:
        return self.election._given_up()


LIMIT_S = HOLD_OUT * (12.0 + context_of(B, C).promise_patience())
BOTH = {voter.peer_id: lease(voter, sequences=0) for voter in (B, C)}
AVERAGING = {voter.peer_id: lease(voter, state=PeerState.REDUCING) for voter in (B, C)}


@pytest.mark.parametrize(
    ("phase", "seen", "counts"),
    [
        # a whole batch is there
        (Phase.ACCUMULATING, View(BOTH, sequences=8), True),
        # promised
        (Phase.PROMISED, View(BOTH, sequences=8), True),
        # holding
        (Phase.HOLDING, View(BOTH, sequences=8), True),
        # we average
        (Phase.REDUCING, View(BOTH, sequences=8), False),
        # the others average
        (Phase.ACCUMULATING, View(AVERAGING, sequences=8), False),
        # we see no other peer
        (Phase.ACCUMULATING, View(sequences=8), False),
        # nothing is computed yet
        (Phase.ACCUMULATING, View(BOTH), False),
    ],
)
def test_a_head_is_overdue_when_it_could_have_been_decided_for_long(
    phase: Phase, seen: View, counts: bool
) -> None:
    waiting = Waiting()
    waiting.context.phase, waiting.context.view = phase, seen
    assert waiting.wait(0.9) < 1
    assert (waiting.wait(0.2) >= 1) == counts
    assert (waiting.wait(8.0) > 0) == counts


def test_of_an_overdue_head_those_are_given_up_that_owe_us_something_or_show_another() -> None:
    waiting = Waiting()
    waiting.wait(0.9)
    waiting.peers.fail([c], Stage.ACCEPT)
    assert not waiting.given_up()
    assert waiting.wait(0.2) >= 1
    assert waiting.given_up() == {C}
    waiting.peers.forgive(c, Stage.PREPARE)
    assert waiting.given_up() == {C}, "it promises each time"
    waiting.peers.ask_all_again()
    assert not waiting.given_up()
    elsewhere = BOTH | {b: lease(B, head=b"x" * 32)}
    waiting.context.view = replace(waiting.context.view, fresh=elsewhere)
    assert waiting.given_up() == {B}


# ---- how long promises are waited for: by what the passes of peers usually take


def patience(
    own: float, *passes: float, guest: float = 0.0, excluded: str = "", answered: bool = True
) -> float:
    """Return the patience of A, given the passes of A, B, C and a guest. All times in seconds."""
    context = context_of()
    of_each = zip((B, C, D), (*passes, guest), strict=True)
    seen = view(*(lease(who, HEAD.digest, pass_seconds=took) for who, took in of_each))
    context.view = replace(seen, pass_seconds=own)
    return context.promise_patience({excluded}, {D.peer_id} if answered else set())


@pytest.mark.parametrize(
    ("waited", "seconds"),
    [
        (patience(0.1, 0.1, 0.2), 1.0),  # at least
        (patience(1.0, 1.0, 20.0), 40.5),  # the slowest, twice
        (patience(1.0, 1.0, 200.0), 60.0),  # at most
        (patience(50.0, 50.0, 100.0), 200.5),  # passes are long
        (patience(50.0, 50.0, 200.0), 250.0),  # five usual ones
        (patience(50.0, 1e9, 50.0), 250.0),  # a liar
        (patience(50.0, 1e9, 0.0), 250.0),  # one that has measured none
        (patience(1.0, 1.0, 20.0, excluded=C.peer_id), 2.5),
        # A guest is waited for for two usual passes at most, and only after an answer.
        (patience(1.0, 1.0, 1.0, guest=25.0, answered=False), 2.5),
        (patience(1.0, 1.0, 1.0, guest=25.0), 4.5),
        (patience(22.0, 23.0, 23.0, guest=25.0), 50.5),
        (patience(12.0, 12.0, 12.0, guest=1e9), 48.5),
        (patience(30.0, 30.0, 30.0, guest=28.0), 60.5),
    ],
)
def test_a_slow_peer_is_waited_for_as_long_as_passes_allow(waited: float, seconds: float) -> None:
    assert waited == pytest.approx(seconds)


def test_a_newcomer_that_broke_an_exchange_is_excluded_and_a_known_peer_is_not() -> None:
    peers = UnreliablePeers(context_of(B, C, D, E))
    assert peers.newcomers_broke([a, b, c, D.peer_id, E.peer_id], [b, c, D.peer_id])
    assert peers.excluded == {D.peer_id}
    assert not peers.newcomers_broke([a, b, c], [b, c])
