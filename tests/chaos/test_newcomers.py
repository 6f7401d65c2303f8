"""An open run of real daemons: a stranger trains at once, earns a vote, and may then be relied on.

The run file names no peer. The joiner earns tenure by contributing to rounds, becomes a voter, and
owns parts of the exchange. From then on the swarm of two needs both: while one of them restarts,
the other goes on by itself, and the returning peer contributes to rounds of both again.
"""

from collections.abc import Iterator

import pytest
from swarm_history import all_end_on_one_chain, contributes, contribution, read_chain
from swarm_of_processes import START_S, Peer, Swarm, endless, gather, swarm_in

from atom.swarm.chain.commit import Head
from atom.swarm.chain.tenure import ROUNDS_TO_EARN

RUN = "newcomers"
GRACE_S = 2.0
BOUND_S = 60.0
"""Within this, rounds go on after a restart."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """Yield a founder and a joiner that train together."""
    names = ("ada", "bob")
    folder, run_text = tmp_path_factory.mktemp("of"), endless(RUN, GRACE_S, 10)
    with swarm_in(folder, run_text, names, trusts=False) as swarm:
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        yield swarm


def heads_of(peer: Peer) -> list[Head]:
    """Return all heads on the peer's chain, genesis first; every certificate is checked."""
    return read_chain(peer.state, RUN)[1]


def voters_of(head: Head) -> set[str]:
    """Return the peer ids of the voters of the next round."""
    return {voter.peer_id for voter in head.voters}


@pytest.mark.timeout(3 * START_S)
def test_a_stranger_trains_at_once_and_votes_after_eight_rounds(two: Swarm) -> None:
    founder, joiner = two.peers
    both = {founder.peer_id, joiner.peer_id}
    two.until(lambda: contributes(two, joiner, 0), "a round with the joiner", BOUND_S)
    two.until(lambda: voters_of(heads_of(founder)[-1]) == both, "a vote of the joiner", START_S)

    heads = heads_of(founder)
    voted = next(head.round for head in heads if voters_of(head) == both)
    worked = [e for e in founder.rounds if contribution(e, joiner.peer_id) and e["round"] <= voted]
    assert len(worked) >= ROUNDS_TO_EARN
    assert all(voters_of(head) == {founder.peer_id} for head in heads if head.round < voted)
    assert not heads[-1].branches


@pytest.mark.timeout(3 * START_S)
@pytest.mark.parametrize("place", [0, 1], ids=["founder", "joiner"])
def test_each_restarts_in_turn_and_rounds_go_on(two: Swarm, place: int) -> None:
    peer, other = two.peers[place], two.peers[1 - place]
    both = {founder.peer_id for founder in two.peers}
    peer.ask("leave", 60.0)
    assert peer.wait() == 0, two.story()
    goal = other.last_round + 2
    two.until(lambda: other.last_round >= goal, "rounds of the other peer alone", BOUND_S)
    mark, lives = len(peer.rounds), peer.lives

    peer.start()
    two.until(lambda: peer.lives > lives or peer.exit_code, "its new life", START_S)
    two.until(lambda: contributes(two, peer, mark), "its part in a round", BOUND_S)
    two.until(lambda: voters_of(heads_of(other)[-1]) == both, "its vote again", BOUND_S)


@pytest.mark.timeout(3 * START_S)
def test_both_leave_at_one_head(two: Swarm) -> None:
    assert all_end_on_one_chain(two, RUN) == 0, "nothing that was trained is discarded"
