"""Real daemons in networks that let nobody in. `make chaos` runs it, as root; not in the suite."""

from pathlib import Path

import pytest
from home_networks import swarm_at_home
from swarm_history import digests_by_head
from swarm_of_processes import START_S, Peer, Swarm, endless, gather

NAMES = ("ada", "bea", "cyd")
BOUND_S = 60.0
ROUNDS = 5
RUN = endless("shut", 4.0, 50)


def rounds_of_all(swarm: Swarm, witness: Peer) -> int:
    everybody = {peer.peer_id for peer in swarm.peers}
    return sum(set(e["members"]) == everybody and all(e["contributed"]) for e in witness.rounds)


@pytest.mark.timeout(3 * START_S)
def test_peers_that_cannot_be_dialled_take_part(tmp_path: Path) -> None:
    with swarm_at_home(tmp_path, RUN, NAMES, [False, True, True]) as (swarm, _):
        gather(swarm)
        for peer in swarm.joiners:
            swarm.until(lambda p=peer: p.control.info()["reachable"] == "no", "a verdict", BOUND_S)
        swarm.resume()
        for peer in swarm.peers:
            swarm.until(lambda p=peer: rounds_of_all(swarm, p) >= ROUNDS, "rounds", BOUND_S)
        assert swarm.founder.control.info()["reachable"] == "yes"
        assert digests_by_head([peer.events() for peer in swarm.peers])
        owners = [
            {peer for peer, share in zip(event["members"], event["shares"], strict=True) if share}
            for member in swarm.peers
            for event in member.events("exchange-chosen")
            if len(event["members"]) == len(NAMES) and event["shares"]
        ]
        assert {swarm.founder.peer_id} in owners, "only the one that can be dialled"
