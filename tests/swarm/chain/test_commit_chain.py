"""Chains from strangers: every certificate is checked, and endless chains are cut off."""

import dataclasses
import math
from collections.abc import Sequence

import pytest

from atom.base.errors import Reason
from atom.swarm.chain import commit_chain
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.commit_chain import (
    PAGE_BYTES,
    Ask,
    Ledger,
    Round,
    Share,
    pages_beyond,
    parse_commits,
    record_of,
    verified_heads,
)
from atom.swarm.identity import Identity
from tests.swarm.chain_samples import a_commit, beginning, heads_along, page_of, voter_of
from tests.swarm.refusals import refusal

ME, ANN, BOB = Identity.create(), Identity.create(), Identity.create()
GENESIS = beginning(ME, trusted=[ANN, BOB])


def grown(rounds: int) -> tuple[list[Head], list[Commit]]:
    """Return a chain on which two trusted peers join the electorate of the founder."""
    heads, commits = [GENESIS], list[Commit]()
    for _ in range(rounds):
        voters = [key for key in (ME, ANN, BOB) if voter_of(key) in heads[-1].voters]
        commits.append(a_commit(heads[-1], {ME: 8, ANN: 8, BOB: 8}, voters))
        heads.append(heads[-1].after(commits[-1].value))
    return heads, commits


def continued(commits: Sequence[Commit], rounds: int, gives: int) -> list[Commit]:
    longer, head = list(commits), heads_along(GENESIS, commits)[-1]
    for _ in range(rounds):
        longer.append(a_commit(head, {ME: gives}, [ME]))
        head = head.after(longer[-1].value)
    return longer


@pytest.mark.parametrize("stripped", range(10))
def test_a_forged_certificate_is_found_wherever_it_lies(stripped: int) -> None:
    """A later quorum vouches for the round as well, but a peer that kept it would pass it on."""
    heads, commits = grown(10)
    assert [len(head.voters) for head in heads[:4]] == [1, 2, 3, 3]
    assert verified_heads(GENESIS, commits) == heads
    commits[stripped] = dataclasses.replace(commits[stripped], votes=())
    told = rf"round {stripped + 1}$"
    assert refusal(verified_heads, GENESIS, commits, match=told) is Reason.BAD_CERTIFICATE


def test_a_round_that_does_not_follow_ends_a_chain() -> None:
    """A gap ends it, and so does a round of another chain with the same voters."""
    commits, others = continued([], 3, 8), continued([], 2, 9)
    for chain in ([commits[0], commits[2]], [commits[0], others[1]]):
        assert refusal(verified_heads, GENESIS, chain) is Reason.WRONG_HEAD


# ---- in pages


def test_a_page_is_bounded_and_never_empty_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = continued([], 5, 8)
    record = len(record_of(commits[0]))
    assert PAGE_BYTES >= commit_chain.MAX_RECORD_BYTES
    for most, fit in ((1, 1), (2 * record + 20, 2), (PAGE_BYTES, 4)):
        monkeypatch.setattr(commit_chain, "PAGE_BYTES", most)
        assert parse_commits(page_of(commits, 1))[0] == commits[1 : 1 + fit]
    assert page_of(commits, 5) == page_of(commits, 10**12 - 1) == b""


def page(commits: Sequence[Commit], there: bool = True) -> bytes:
    return b"".join(map(record_of, commits[:3])) if there else b""


class Donor:
    """Serves a chain in pages of three; notes what it was asked for."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.commits = commits
        self.asked: list[int] = []

    def __call__(self, name: str, max_bytes: int) -> bytes:
        assert max_bytes == PAGE_BYTES
        since = int(name.removeprefix("chain/"))
        self.asked.append(since)
        return page(self.commits[since:])


@pytest.mark.parametrize("ours", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("shared", [0, 1, 5, 19, 20])
@pytest.mark.parametrize("news", [0, 1, 8])
def test_a_donors_chain_is_found_from_where_it_parts(ours: int, shared: int, news: int) -> None:
    trunk = continued([], min(ours, shared), 8)
    own = continued(trunk, ours - len(trunk), 9)
    theirs = continued(trunk, news, 10)
    heads, donor = heads_along(GENESIS, own), Donor(theirs)
    found = list(pages_beyond(heads, donor))
    if theirs:
        first, end = found[0][0][0], found[-1][0][-1]
        assert end == heads_along(GENESIS, theirs)[-1]
        assert first in heads
        assert [commit for _, page in found for commit in page] == theirs[first.round :]
    else:
        assert found == []
    assert len(donor.asked) <= 2 * math.log2(ours + 1) + 3 + news / 3


def test_whoever_repeats_us_is_not_listened_to() -> None:
    """Our own chain, from genesis on, as if it had nothing newer."""
    own = continued([], 50, 8)
    found = pages_beyond(heads_along(GENESIS, own), lambda name, _: page(own, name == "chain/0"))
    assert len(list(found)) == 1


THREE = continued([], 3, 8)
TORN = record_of(THREE[0])[:-1]


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda *_: page(THREE), Reason.WRONG_HEAD),
        (Donor(THREE[1:]), Reason.WRONG_HEAD),
        (lambda *_: TORN, Reason.MALFORMED),
        (lambda *_: (10).to_bytes(4, "big") + b"0123456789", Reason.MALFORMED),
        (lambda *_: (1 << 30).to_bytes(4, "big"), Reason.TOO_LARGE),
    ],
    ids=["repeats itself", "another run", "half a commit", "no commit", "an endless record"],
)
def test_what_is_no_chain_is_refused_by_name(ask: Ask, reason: Reason) -> None:
    assert refusal(lambda: list(pages_beyond([GENESIS], ask))) is reason


# ---- sums over a chain that was checked


START = beginning(ANN, trusted=[BOB])


def test_sums_of_a_run_with_a_late_peer_and_a_branch() -> None:
    first = a_commit(START, {ANN: 8}, [ANN], loss=3.0)
    second = a_commit(START.after(first.value), {ANN: 5, BOB: 3}, [ANN])
    third = a_commit(
        heads_along(START, [first, second])[-1], {BOB: 9}, [BOB], loss=1.5, survivors=[BOB]
    )
    commits = [first, second, third]
    heads = heads_along(START, commits)
    ledger = Ledger(START).after(heads[:2], commits[:1]).after(heads[1:], commits[1:])
    assert ledger.head == heads[-1]
    assert ledger.rounds == (
        Round(1, 3.0, 8, 1, 0, 0),
        Round(2, 2.0, 8, 2, 0, 0),
        Round(3, 1.5, 9, 1, 1, 1),
    )
    assert ledger.by_share() == [
        (ANN.peer_id, Share(13, 2, 1, 2)),
        (BOB.peer_id, Share(12, 2, 2, 3)),
    ]
    assert ledger.sequences == 25


def test_a_member_that_contributed_nothing_has_no_share_and_is_not_absent() -> None:
    commit = a_commit(START, {ANN: 8, BOB: 0}, [ANN])
    ledger = Ledger(START).after(heads_along(START, [commit]), [commit])
    assert ledger.shares == {ANN.peer_id: Share(8, 1, 1, 1)}
    assert (ledger.rounds[0].members, ledger.rounds[0].absent) == (1, 0)
