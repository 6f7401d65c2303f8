"""A daemon with two devices and one with one train together, and hold the same bits."""

from pathlib import Path

import pytest
from swarm_history import check_peers, read_chain
from swarm_of_processes import START_S, endless, gather, swarm_in

pytestmark = pytest.mark.timeout(4 * START_S)

NAME, ROUNDS = "pair", 2


def test_a_daemon_with_two_devices_holds_the_bits_of_one_with_one(tmp_path: Path) -> None:
    run = endless(NAME, 10.0, snapshot_rounds=1, rounds=f"rounds = {ROUNDS}", sequences=400)
    with swarm_in(tmp_path, run, ("two", "one"), memory="auto") as swarm:
        swarm.founder.use('["cpu", "cpu"]')
        swarm.found(standing=True)
        gather(swarm)
        info = swarm.founder.info()
        assert info["devices"] == {"cpu (1)": None, "cpu (2)": None}
        swarm.resume()
        for peer in swarm.peers:
            assert peer.wait() == 0, swarm.story()
        assert check_peers(swarm.peers, NAME) == 0, "replicas agree in every round"
        commits, _ = read_chain(swarm.founder.state, NAME)
        assert len(commits) == ROUNDS
        for commit in commits:
            given = {part.peer_id: part.sequences for part in commit.value.contributions}
            assert all(given[peer.peer_id] for peer in swarm.peers)
        digests = [[event["digest"] for event in peer.rounds] for peer in swarm.peers]
        assert digests[0] == digests[1]
