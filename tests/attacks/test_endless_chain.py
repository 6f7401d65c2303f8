"""Attack: a former member makes a branch alone, and serves valid rounds of it without end."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from atom.base.errors import Reason
from atom.cli.look.chain_reader import LedgerReader
from atom.swarm.chain import commit_chain
from atom.swarm.chain.commit import Commit
from atom.swarm.chain.commit_chain import PAGE_BYTES, Ask, pages_beyond
from atom.swarm.records.lease import Lease
from atom.swarm.state.blobs import Content, plain_bytes
from tests.swarm.chain_samples import a_commit, page_of
from tests.swarm.refusals import refusal
from tests.swarm.swarm_samples import a_lease
from tests.training.catching_peer import PAGE_COMMITS, Make, Served
from tests.training.small_history import FOUNDER, ROUNDS, chain_bytes, run

BOUND = 64 * 1024
"""Bytes of a chain in these tests; 64 MiB outside."""
GIVES_UP = 8 * BOUND
"""An attacker that got rid of so many bytes has shown that nothing bounds it."""


class Endless(Served):
    """A chain with a branch at the head of some round, and ever more rounds of one voter."""

    def __init__(self, parts_at: int) -> None:
        super().__init__()
        story = run()
        self.commits = [*story.commits[:parts_at]]
        self.head = story.heads[parts_at]
        self._add(story.branch(parts_at))
        self.served_bytes = 0

    def _add(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.head = self.head.after(commit.value)

    def content_of(self, name: str) -> Content | None:
        if not name.startswith("chain/"):
            return super().content_of(name)
        if self.served_bytes > GIVES_UP:
            raise ConnectionError("it would go on")
        since = int(name.removeprefix("chain/"))
        while len(self.commits) < since + 10:
            self._add(a_commit(self.head, {FOUNDER: 1}, [FOUNDER]))
        page = page_of(self.commits[: since + 10], since)
        self.served_bytes += len(page)
        return plain_bytes(page)


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit_chain.MAX_CHAIN_BYTES == 64 * 1024 * 1024
    monkeypatch.setattr(commit_chain, "MAX_CHAIN_BYTES", BOUND)


def test_an_endless_branch_is_refused_by_name_and_its_donor_reported(peer_of: Make) -> None:
    peer = peer_of(at=ROUNDS)
    attackers = [Endless(ROUNDS) for _ in range(3)]
    for attacker in attackers:
        door = peer.door(attacker)
        assert refusal(peer.proven_head, door, 2**40) is Reason.TOO_LARGE
        assert peer.liars[-1] == door
        assert BOUND < attacker.served_bytes < BOUND + PAGE_BYTES
        walked = peer.recovery._walked
        assert walked.heads[-1].branches == (), "the next one does not go on from there"
    assert "too-large" in peer.run(Endless(ROUNDS)), "nor does a catch-up take it"
    assert peer.at(ROUNDS)


def test_not_much_more_is_fetched_than_the_lease_claims(peer_of: Make) -> None:
    peer, attacker = peer_of(at=ROUNDS), Endless(ROUNDS)
    head = peer.proven_head(peer.door(attacker), ROUNDS + 3)
    assert ROUNDS + 3 <= head.round <= ROUNDS + 3 + 8 + 10, "eight rounds, and one page"


def test_a_branch_against_a_round_of_our_quorum_is_left_at_once(peer_of: Make) -> None:
    """However long it is: no round of it can make it preferred."""
    peer, attacker = peer_of(at=ROUNDS), Endless(2)
    assert peer.proven_head(peer.door(attacker), 2**40) == run().heads[0]
    asked = [int(name.removeprefix("chain/")) for name in attacker.asked_for("chain/")]
    assert max(asked, default=0) <= ROUNDS
    assert attacker.served_bytes < BOUND / 2
    assert peer.liars == [], "survivors of an outage may have made it in good faith"
    assert "nothing better" in peer.run(attacker)


def test_a_long_chain_of_quorums_is_fetched_in_several_goes(
    peer_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer to an old run reports no peer, and repeats no fetch."""
    monkeypatch.setattr(commit_chain, "MAX_CHAIN_BYTES", len(chain_bytes(run().commits[:1])))
    peer, honest = peer_of(knows_start=False), Served(offers=[3])
    reached = list[int]()
    while (head := peer.proven_head(peer.door(honest))) != run().heads[-1]:
        reached.append(head.round)
        assert len(reached) <= ROUNDS / PAGE_COMMITS
    assert reached == [2, 4]
    assert peer.liars == []
    assert peer.run(honest) == ""
    assert peer.at(ROUNDS)


# ---- an onlooker


def fetches(attacker: Endless) -> LedgerReader:
    @contextmanager
    def fetch(lease: Lease) -> Iterator[Ask]:
        def ask(name: str, max_bytes: int) -> bytes:
            content = attacker.content_of(name)
            assert content is not None
            return bytes(content["bytes"].numpy())

        yield ask

    return LedgerReader(run().heads[0], fetch)


def test_an_onlooker_keeps_nothing_of_an_endless_branch() -> None:
    attacker = Endless(ROUNDS)
    reader = fetches(attacker)
    lease = a_lease(FOUNDER.peer_id, head=b"x" * 32, round=2**40)
    for _ in range(3):
        attacker.served_bytes = 0
        ledger = reader.read([lease])
        assert "too-large" in reader.problem
        assert attacker.served_bytes < BOUND + PAGE_BYTES
        assert len(ledger.rounds) <= ROUNDS
        assert ledger.head.branches == ()


def test_our_own_branch_may_go_on(peer_of: Make) -> None:
    """Peers that opened it together follow each other."""
    story = run()
    branch = story.branch(ROUNDS)
    heads = [*story.heads, story.heads[-1].after(branch.value)]
    after = a_commit(heads[-1], {FOUNDER: 1}, [FOUNDER])
    commits = [*story.commits, branch, after]
    pages = list(pages_beyond(heads, lambda name, _: page_of(commits, int(name[6:]))))
    assert [along[-1].round for along, _ in pages] == [ROUNDS + 2]
