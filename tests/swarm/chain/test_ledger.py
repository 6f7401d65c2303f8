"""Sums over a chain that was checked."""

import dataclasses

from atom.swarm.chain.commit_chain import Ledger, Round, Share
from atom.swarm.identity import Identity
from tests.swarm.chain_samples import a_commit, beginning, heads_along

ANN, BOB = Identity.create(), Identity.create()
GENESIS = beginning(ANN)


def test_sums_of_a_run_with_a_late_peer_and_a_branch() -> None:
    first = a_commit(GENESIS, {ANN: 8}, [ANN], loss=3.0)
    second = a_commit(GENESIS.after(first.value), {ANN: 5, BOB: 3}, [ANN, BOB])
    third = a_commit(
        heads_along(GENESIS, [first, second])[-1], {BOB: 9}, [BOB], loss=1.5, survivors=[BOB]
    )
    commits = [first, second, third]
    heads = heads_along(GENESIS, commits)
    ledger = Ledger(GENESIS).after(heads[:2], commits[:1]).after(heads[1:], commits[1:])
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


def test_one_part_in_a_round_of_who_restarted_in_it_and_none_of_who_gave_nothing() -> None:
    commit = a_commit(GENESIS, {ANN: 8, BOB: 0}, [ANN, BOB])
    again = dataclasses.replace(commit.value.contributions[0], incarnation=b"j" * 16, sequences=2)
    value = dataclasses.replace(commit.value, contributions=(*commit.value.contributions, again))
    commit = dataclasses.replace(commit, value=value)
    ledger = Ledger(GENESIS).after(heads_along(GENESIS, [commit]), [commit])
    assert ledger.shares == {ANN.peer_id: Share(10, 1, 1, 1)}
    assert (ledger.rounds[0].members, ledger.rounds[0].absent) == (1, 0)
