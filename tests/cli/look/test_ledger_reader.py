"""Sums over a chain that was checked, from donors that may lie."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import Mock

import pytest

from atom.base.errors import PeerRefused, Reason
from atom.cli.look.chain_reader import DONORS, LedgerReader
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.commit_chain import Ask, Share, record_of
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease
from tests.swarm.chain_samples import a_commit, beginning, heads_along
from tests.swarm.swarm_samples import a_lease

ANN, BOB = Identity.create(), Identity.create()
GENESIS = beginning(ANN)


def chain(length: int, first: Head = GENESIS, gives: int = 8) -> list[Commit]:
    commits, head = [], first
    for _ in range(length):
        commits.append(a_commit(head, {ANN: gives}, [ANN]))
        head = head.after(commits[-1].value)
    return commits


PAGE = 128


class Donors:
    """Donors with a chain each, as a `FetchChain` that records the requests."""

    def __init__(self, chains: dict[str, Sequence[Commit]]) -> None:
        self.chains = chains
        self.asked: list[tuple[str, int]] = []

    @contextmanager
    def __call__(self, lease: Lease) -> Iterator[Ask]:
        def ask(name: str, max_bytes: int) -> bytes:
            since = int(name.removeprefix("chain/"))
            self.asked.append((lease.peer_id, since))
            return b"".join(map(record_of, self.chains[lease.peer_id][since : since + PAGE]))

        if lease.peer_id not in self.chains:
            self.asked.append((lease.peer_id, 0))
            raise PeerRefused(Reason.UNREACHABLE)
        yield ask


def lease_of(peer_id: str, commits: Sequence[Commit]) -> Lease:
    head = heads_along(GENESIS, commits)[-1]
    return a_lease(peer_id, head=head.digest, round=head.round, branches=tuple(head.branches))


def reading(donors: Donors) -> LedgerReader:
    return LedgerReader(GENESIS, donors)


def test_only_what_is_new_is_fetched() -> None:
    commits = chain(300)
    donors = Donors({"a": commits[:200]})
    reader = reading(donors)
    told: list[tuple[int, int]] = []
    reader.on_progress = lambda done, total: told.append((done, total))
    assert reader.read([lease_of("a", commits[:200])]).head.round == 200
    assert told == [(128, 200), (200, 200)]
    assert reader.read([lease_of("a", commits[:200])]).head.round == 200
    donors.chains["a"] = commits
    ledger = reader.read([lease_of("a", commits)])
    assert donors.asked == [("a", since) for since in (0, 128, 200, 200, 300)]
    assert [each.number for each in ledger.rounds] == list(range(1, 301))
    assert ledger.shares == {ANN.peer_id: Share(2400, 300, 1, 300)}


def test_a_better_chain_that_is_not_ours_replaces_it_and_a_worse_one_does_not() -> None:
    ours, better = chain(3), chain(4, gives=30)
    donors = Donors({"a": ours, "b": better})
    reader = reading(donors)
    reader.read([lease_of("a", ours)])
    ledger = reader.read([lease_of("b", better)])
    assert (ledger.head.round, ledger.sequences) == (4, 120)
    assert reader.read([lease_of("a", ours)]) is ledger
    assert donors.asked == [("a", 0), ("a", 3), ("b", 3), ("b", 0), ("b", 4)]


def branched(commits: list[Commit]) -> list[Commit]:
    """Return these commits with another last round, which one voter committed alone."""
    head = heads_along(GENESIS, commits[:-1])[-1]
    return [*commits[:-1], a_commit(head, {ANN: 10**6}, [ANN], survivors=[ANN])]


def test_a_quorums_round_comes_before_a_branch_however_much_was_given_on_it() -> None:
    honest = chain(3)
    alone = branched(honest)
    donors = Donors({"alone": alone, "a": honest})
    reader = reading(donors)
    assert reader.read([lease_of("alone", alone)]).rounds[-1].branch == 1
    ledger = reader.read([lease_of("alone", alone), lease_of("a", honest)])
    assert ledger.shares == {ANN.peer_id: Share(24, 3, 1, 3)}


def forged(commits: list[Commit]) -> list[Commit]:
    """Return a chain whose last round a stranger leads, and alone signs."""
    head = heads_along(GENESIS, commits[:-1])[-1]
    return [*commits[:-1], a_commit(head, {BOB: 999}, [BOB])]


def test_a_liar_is_skipped() -> None:
    honest = chain(3)
    lies = forged(chain(4))
    donors = Donors({"liar": lies, "a": honest})
    reader = reading(donors)
    ledger = reader.read([lease_of("liar", lies), lease_of("a", honest)])
    assert ledger.shares == {ANN.peer_id: Share(24, 3, 1, 3)}
    assert reader.problem == ""
    assert donors.asked == [("liar", 0), ("a", 0), ("a", 3)]


@pytest.mark.parametrize(
    ("served", "said"),
    [
        (forged(chain(3)), "not-a-voter"),
        (chain(2), "wrong-head"),
        (chain(3)[1:], "wrong-head"),
    ],
)
def test_a_chain_that_does_not_prove_its_head_changes_nothing(
    served: list[Commit], said: str
) -> None:
    claimed = forged(chain(3)) if said == "not-a-voter" else chain(3)
    reader = reading(Donors({"a": served}))
    ledger = reader.read([lease_of("a", claimed)])
    assert BOB.peer_id not in ledger.shares
    assert said in reader.problem


def test_a_crowd_that_claims_more_keeps_nobody_from_the_chain() -> None:
    commits = chain(3)
    donors = Donors({})
    crowd = [a_lease(f"of a crowd {n}", head=b"x" * 32, round=2**62) for n in range(40)]
    reader, known = reading(donors), lease_of(ANN.peer_id, commits[:2])
    assert reader.read([known]).head == GENESIS
    assert "unreachable" in reader.problem
    donors.chains = {ANN.peer_id: commits[:2], "new": commits}
    assert reader.read([*crowd, known]).head.round == 2, "though it was asked in vain"
    assert reader.problem == ""
    for _ in range(1 + len(crowd) // DONORS):
        reader.read([*crowd, lease_of("new", commits)])
    assert reader.ledger.head.round == 3, "an unknown peer gets its turn"


def test_a_read_that_is_broken_off_keeps_what_it_checked() -> None:
    commits = chain(200)
    reader = reading(Donors({"a": commits}))
    reader.on_progress = Mock(side_effect=[OSError("stopped")])
    assert reader.read([lease_of("a", commits)]).head.round == 128
