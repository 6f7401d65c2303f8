"""Claims of a better head: looked into a few at a time, and followed once one of them is proven."""

from dataclasses import replace

import pytest
from scene import BATCH, HEAD, MATE, ME, STATE, US, Scene, lease, strangers

from atom.swarm.chain.commit import Branch, Head, Voter
from atom.swarm.chain.messages import Prevote
from atom.training.round.events import CatchUp, CaughtUp, ChainFetched, FetchChain, Tick, View
from atom.training.round.head_candidates import AT_ONCE, LONGEST_DOUBT_S
from atom.training.round.machine import RoundMachine
from atom.training.round.round_state import RoundPatience, RoundTerms

NEXT = replace(HEAD, digest=b"n" * 32, round=HEAD.round + 1)
FAR = replace(HEAD, digest=b"f" * 32, round=HEAD.round + 100)
NOWHERE = replace(HEAD, digest=b"x" * 32, round=10**9)
FIRST, SECOND = strangers(2)
CROWD = tuple(strangers(40))


class Claims(Scene):
    """Claims whose chains the test chooses, and the time to fetch one. A peer that is not named
    serves no chain that holds."""

    def __init__(self) -> None:
        super().__init__()
        self.serves: dict[str, Head] = {}
        self.takes_s = 0.2
        self.asked: list[str] = []
        self._due: list[tuple[float, str]] = []

    def claim(self, head: Head, *peers: str) -> None:
        for peer in peers:
            theirs = lease(Voter(peer, b"s" * 16), 0)
            self.leases[peer] = replace(theirs, head=head.digest, round=head.round)

    def go_on(self, seconds: float, quarantined: frozenset[str] = frozenset()) -> None:
        for _ in range(round(seconds / 0.1)):
            ticked = self.tick(quarantined=quarantined)
            asked = [each.donor for each in ticked if isinstance(each, FetchChain)]
            self.asked += asked
            self._due += [(self.now + self.takes_s, donor) for donor in asked]
            while self._due and self._due[0][0] <= self.now:
                _, donor = self._due.pop(0)
                self.tell(ChainFetched(donor, self.serves.get(donor)))

    @property
    def followed(self) -> list[tuple[str, ...]]:
        return [action.donors for action in self.done(CatchUp)]


@pytest.fixture
def claims() -> Claims:
    return Claims()


def test_a_claim_is_looked_into_after_a_moment_and_followed_once_it_is_proven(
    claims: Claims,
) -> None:
    claims.claim(FAR, FIRST)
    claims.serves = {FIRST: FAR}
    claims.go_on(RoundPatience().behind)
    assert claims.asked == [], "the commit may be under way to us"
    claims.go_on(0.2)
    assert (claims.asked, claims.followed) == ([FIRST], [])
    claims.go_on(1.0)
    assert (claims.asked, claims.followed) == ([FIRST], [(FIRST,)])


def test_claims_that_nobody_proves_cost_nothing_and_hide_nobody(claims: Claims) -> None:
    claims.claim(NOWHERE, *CROWD)
    claims.go_on(10.0)
    assert claims.sent(Prevote), "it leads meanwhile"
    assert claims.followed == []
    claims.claim(FAR, FIRST)
    claims.serves = {FIRST: FAR}
    claims.go_on(10.0)
    assert [donors[0] for donors in claims.followed] == [FIRST]


def test_a_chain_that_ends_before_what_is_claimed_proves_nothing(claims: Claims) -> None:
    """Else its peer could have us follow the true chain round after round, and never arrive."""
    claims.claim(FAR, FIRST, SECOND)
    claims.serves = {FIRST: NEXT}
    claims.go_on(30.0)
    assert FIRST in claims.asked
    assert claims.followed == []
    claims.serves[SECOND] = FAR
    claims.go_on(LONGEST_DOUBT_S + 3.0)
    assert claims.followed[0][0] == SECOND


@pytest.mark.parametrize("first", [FIRST, SECOND])
def test_the_best_that_is_proven_is_followed(claims: Claims, first: str) -> None:
    claims.serves = {FIRST: NEXT, SECOND: FAR}
    for peer in (first, *{FIRST, SECOND} - {first}):
        claims.claim(claims.serves[peer], peer)
    claims.go_on(3.0)
    assert set(claims.asked) == {FIRST, SECOND}
    assert claims.followed == [(SECOND, FIRST)]


def test_of_a_crowd_few_are_asked_at_once_and_those_we_know_first(claims: Claims) -> None:
    claims.takes_s = 60.0
    claims.claim(NOWHERE, *CROWD, MATE.peer_id)
    claims.go_on(10.0)
    assert len(claims.asked) == AT_ONCE
    assert claims.asked[0] == MATE.peer_id


def test_who_did_not_bring_us_there_proves_its_claim_anew(claims: Claims) -> None:
    claims.claim(FAR, FIRST)
    claims.serves = {FIRST: FAR}
    claims.go_on(2.0)
    claims.serves.clear()
    claims.tell(CaughtUp(HEAD, STATE, (FIRST,)))
    claims.go_on(30.0)
    assert len(claims.asked) > 1
    assert claims.followed == [(FIRST,)]


@pytest.mark.parametrize("claimed", [HEAD, NOWHERE])
@pytest.mark.parametrize("on_disk", [HEAD, FAR])
def test_without_a_state_all_are_asked_in_turn_whatever_chain_is_on_disk(
    claimed: Head, on_disk: Head
) -> None:
    """The chain on disk may be one that the run's owner gave up: its peers cannot help. Each
    catch-up takes so long that the peers that were asked first may be asked again."""
    machine, now = RoundMachine(ME, HEAD, b"", RoundTerms(BATCH), US.sign, 0.0), 0.0
    shown = {"head": claimed.digest, "round": claimed.round}
    crowd = [replace(lease(v, 0), **shown) for v in strangers(40).values()]
    leases = {each.peer_id: each for each in (*crowd, lease(MATE, 0))}
    asked = set[str]()
    for _ in range(12):
        now += 60.0
        [fetch] = [a for a in machine.handle(Tick(View(leases)), now) if isinstance(a, CatchUp)]
        asked.update(fetch.donors)
        now += 40.0
        machine.handle(CaughtUp(on_disk, b"", fetch.donors), now)
    assert MATE.peer_id in asked
    assert claimed == NOWHERE or asked == leases.keys()


@pytest.mark.parametrize("alone", [True, False], ids=["we left by a branch", "we are behind"])
def test_our_own_vote_keeps_a_branch_away_only_while_we_could_still_use_it(alone: bool) -> None:
    """The first of two voters is a quorum. On a chain of its own it cannot decide for that head any
    more: it has to follow the other voter's branch, or each would stay alone for ever."""
    fork = replace(FAR, digest=b"2" * 32, voters=(ME, MATE))
    ours = Branch(HEAD.round, 1, b"o" * 8)
    theirs = replace(FAR, branches=(Branch(FAR.round, 1, b"t" * 8),))
    head = replace(HEAD, voters=(ME,), branches=(ours,) if alone else ())
    machine = RoundMachine(ME, head, STATE, RoundTerms(BATCH), US.sign, 0.0)
    claim = replace(
        lease(MATE, 0), head=theirs.digest, round=theirs.round, branches=theirs.branches
    )
    followed = []
    for tick in range(20):
        actions = machine.handle(Tick(View({MATE.peer_id: claim})), tick / 10)
        followed += [action for action in actions if isinstance(action, CatchUp)]
        for fetch in [action for action in actions if isinstance(action, FetchChain)]:
            machine.handle(ChainFetched(fetch.donor, theirs, (fork,)), tick / 10)
    assert bool(followed) == alone
