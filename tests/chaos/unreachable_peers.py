"""Real daemons that nobody can dial: one listens nowhere, one announces what leads nowhere."""

from collections.abc import Iterator

import pytest
from swarm_of_processes import START_S, Peer, Swarm, endless, gather, swarm_in

SHUT, BEHIND = 'reachable = "no"', 'announce = ["192.0.2.1"]  # for documentation: leads nowhere'
BOUND_S = 60.0


@pytest.fixture
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    names = ("ada", "shut", "behind")
    with swarm_in(tmp_path_factory.mktemp("un"), endless("shut", 4.0, 50), names) as swarm:
        for peer, wish in zip(swarm.joiners, (SHUT, BEHIND), strict=True):
            with (swarm.root / f"{peer.name}.toml").open("a", encoding="utf-8") as file:
                file.write(wish + "\n")
        yield swarm


def all_three_average(swarm: Swarm, witness: Peer) -> bool:
    everybody = {peer.peer_id for peer in swarm.peers}
    return any(
        set(event["members"]) == everybody and all(event["contributed"])
        for event in witness.rounds[-3:]
    )


@pytest.mark.timeout(3 * START_S)
def test_peers_that_cannot_be_dialled_take_part(three: Swarm) -> None:
    three.found()
    gather([three])
    shut, behind = three.joiners
    three.until(lambda: behind.control.info()["reachable"] == "no", "a verdict", BOUND_S)
    three.resume()
    for witness in three.peers:
        three.until(lambda w=witness: all_three_average(three, w), "a round of all", BOUND_S)
    digests: dict[str, set[str]] = {}
    for peer in three.peers:
        for event in peer.rounds:
            digests.setdefault(event["head"], set()).add(event["digest"])
    assert all(len(found) == 1 for found in digests.values())
    assert three.founder.control.info()["reachable"] == "yes"
    assert shut.control.info()["data_addresses"] == []
    composed = [event for peer in three.peers for event in peer.events("ring-order")]
    full = [event for event in composed if len(event["members"]) == 3]
    assert full
    assert all(event["relayed"] == 1 for event in full), "of three, two are neighbours"
