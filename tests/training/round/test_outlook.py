"""What a peer makes of the others' leases: who counted what, and who shares the work."""

from dataclasses import replace

import pytest
from test_silent_peers import GONE, HEAD, MATE, ME, STATE, US, lease

from atom.swarm.records import Lease, PeerState
from atom.training.outlook import count_swarm
from atom.training.pacing import SwarmCount
from atom.training.round import RoundMachine, Terms
from atom.training.round.vocabulary import View


def counted(*leases: Lease) -> SwarmCount:
    machine = RoundMachine(ME, HEAD, STATE, Terms(global_batch=96), US.sign, 0.0)
    view = View(fresh={lease.peer_id: lease for lease in leases})
    return count_swarm(machine, view, 1.0)


def test_all_at_our_head_share_the_work() -> None:
    assert counted(lease(MATE, 8), lease(GONE, 16)) == SwarmCount(24, 3, 1.0, 2.0)


@pytest.mark.parametrize("state", [PeerState.PAUSED, PeerState.LEAVING])
def test_who_does_nothing_more_leaves_the_rest_to_the_others(state: PeerState) -> None:
    """Else each waited for news of work that nobody does, before every pass beyond its share."""
    idle = replace(lease(GONE, 16), state=state)
    assert counted(lease(MATE, 8), idle) == SwarmCount(24, 2, 1.0, 2.0)
    late = replace(idle, round=HEAD.round - 1, head=b"x" * 32)
    assert counted(lease(MATE, 8), late).peers == 2


def test_a_member_of_the_last_round_is_on_its_way() -> None:
    late = replace(lease(GONE, 96), round=HEAD.round - 1, head=b"x" * 32)
    assert counted(lease(MATE, 8), late) == SwarmCount(8, 3, 1.0, 1.0)
