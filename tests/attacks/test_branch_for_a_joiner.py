"""A donor that offers a joiner a branch which one former member opened and continued alone.

Each commit of the branch is valid, and its results and states are served. A peer with a state of
its own asks the leases before it follows a branch; a joiner has to choose among chains.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from atom.swarm.chain.commit import Commit
from tests.swarm.chain_samples import a_commit
from tests.training.catching_peer import Make, Served
from tests.training.small_history import FOUNDER, ROUNDS, chain_bytes, run

PARTS_AT, LONGER = 2, 3


def branch_of_one() -> list[Commit]:
    """Return a chain that the founder continued alone, with results and states of the true one."""
    story = run()
    commits, head = story.commits[:PARTS_AT], story.heads[PARTS_AT]
    for number in range(PARTS_AT + 1, ROUNDS + LONGER + 1):
        true = story.commits[min(number, ROUNDS) - 1].value
        taken: dict[str, Any] = {
            "result_digest": true.result_digest,
            "gradient_norm": true.gradient_norm,
        }
        if number == PARTS_AT + 1:
            commit = story.branch(PARTS_AT, **taken)
        else:
            state = true.parent_state_digest if number <= ROUNDS else b""
            taken["parent_state_digest"] = state
            commit = a_commit(head, {FOUNDER: 9}, [FOUNDER], **taken)
        commits, head = [*commits, commit], head.after(commit.value)
    return commits


def donor_of_branch(offers: Sequence[int] = (PARTS_AT,)) -> Served:
    served = Served(offers)
    served.chain = chain_bytes(branch_of_one())
    return served


@pytest.mark.parametrize("asked", ["the liar first", "the liar last"])
@pytest.mark.parametrize("knows_start", [True, False])
def test_a_joiner_takes_the_chain_of_the_quorum_from_whichever_donor(
    peer_of: Make, asked: str, knows_start: bool
) -> None:
    peer, liar, honest = peer_of(knows_start), donor_of_branch(), Served(offers=[3])
    donors = [liar, honest] if asked == "the liar first" else [honest, liar]
    assert peer.run(*donors, discard=True) == ""
    assert peer.at(ROUNDS)


def test_a_run_that_lives_on_a_branch_is_joined_all_the_same(peer_of: Make) -> None:
    """The old voters of the run are gone, and no peer serves another chain."""
    peer, first, second = peer_of(knows_start=False), donor_of_branch(()), donor_of_branch()
    assert peer.run(first, second, discard=True) == ""
    assert peer.shared.usable
    assert peer.journal.commits == branch_of_one()
    assert peer.journal.head.branches


def test_a_donor_of_a_branch_is_asked_again_if_the_others_lead_nowhere(peer_of: Make) -> None:
    peer, gone, living = peer_of(knows_start=False), Served(results=[]), donor_of_branch()
    assert peer.run(gone, living, discard=True) == ""
    assert peer.journal.commits == branch_of_one()
    assert gone.asked.count("chain/0") == 1
