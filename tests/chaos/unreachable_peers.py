"""Real daemons that nobody can dial. Not in the suite: `make chaos` runs it, as root in networks
that let nobody in, too."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from home_networks import swarm_at_home
from swarm_history import digests_by_head
from swarm_of_processes import START_S, Peer, Swarm, endless, gather, swarm_in

NAMES = ("ada", "bea", "cyd")
SHUT, BEHIND = 'reachable = "no"', 'announce = ["192.0.2.1"]  # for documentation: leads nowhere'
BOUND_S = 60.0
ROUNDS = 5
RUN = endless("shut", 4.0, 50)


@contextlib.contextmanager
def on_loopback(root: Path) -> Iterator[Swarm]:
    """One opens no port, one announces what leads nowhere."""
    with swarm_in(root, RUN, NAMES) as swarm:
        for peer, wish in zip(swarm.joiners, (SHUT, BEHIND), strict=True):
            peer.configure(wish)
        swarm.found(standing=True)
        yield swarm


@contextlib.contextmanager
def at_home(root: Path) -> Iterator[Swarm]:
    """In networks of their own; two of them let nobody in, and nobody says so."""
    with swarm_at_home(root, RUN, NAMES, [False, True, True]) as (swarm, _):
        yield swarm


PLACES = [on_loopback, at_home] if os.geteuid() == 0 else [on_loopback]


def rounds_of_all(swarm: Swarm, witness: Peer) -> int:
    everybody = {peer.peer_id for peer in swarm.peers}
    return sum(set(e["members"]) == everybody and all(e["contributed"]) for e in witness.rounds)


@pytest.mark.timeout(3 * START_S)
@pytest.mark.parametrize("place", PLACES)
def test_peers_that_cannot_be_dialled_take_part(
    tmp_path: Path, place: Callable[[Path], AbstractContextManager[Swarm]]
) -> None:
    with place(tmp_path) as swarm:
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
