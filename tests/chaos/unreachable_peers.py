"""Real daemons that nobody can dial. Not in the suite: `make chaos` runs it, as root in networks
that let nobody in, too."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from home_networks import homes
from swarm_history import digests_by_head
from swarm_of_processes import START_S, Event, Peer, Swarm, endless, gather, swarm_in

NAMES = ("ada", "bea", "cyd")
SHUT, BEHIND = 'reachable = "no"', 'announce = ["192.0.2.1"]  # for documentation: leads nowhere'
BOUND_S = 60.0
ROUNDS = 5


def write(swarm: Swarm, peer: Peer, wish: str, host: str = "127.0.0.1") -> None:
    path = swarm.root / f"{peer.name}.toml"
    text = path.read_text(encoding="utf-8").replace("127.0.0.1", host)
    path.write_text(f"{text}{wish}\n", encoding="utf-8")


@contextlib.contextmanager
def on_loopback(root: Path) -> Iterator[Swarm]:
    """One opens no port, one announces what leads nowhere."""
    with swarm_in(root, endless("shut", 4.0, 50), NAMES) as swarm:
        for peer, wish in zip(swarm.joiners, (SHUT, BEHIND), strict=True):
            write(swarm, peer, wish)
        swarm.found()
        yield swarm


@contextlib.contextmanager
def at_home(root: Path) -> Iterator[Swarm]:
    """In networks of their own; two of them let nobody in, and nobody says so."""
    with (
        homes([False, True, True]) as places,
        swarm_in(root, endless("home", 4.0, 50), NAMES) as swarm,
    ):
        for peer, home in zip(swarm.peers, places, strict=True):
            peer.namespace = home.namespace
            write(swarm, peer, "", home.host)
        listen = f"{places[0].host}:31337"
        swarm.founder.start("start", str(swarm.run_file), "--listen", listen)
        yield swarm


PLACES = [on_loopback, at_home] if os.geteuid() == 0 else [on_loopback]


def rounds_of_all(swarm: Swarm, witness: Peer) -> Sequence[Event]:
    everybody = {peer.peer_id for peer in swarm.peers}
    return [
        event
        for event in witness.rounds
        if set(event["members"]) == everybody and all(event["contributed"])
    ]


@pytest.mark.timeout(3 * START_S)
@pytest.mark.parametrize("place", PLACES)
def test_peers_that_cannot_be_dialled_take_part(
    tmp_path: Path, place: Callable[[Path], AbstractContextManager[Swarm]]
) -> None:
    with place(tmp_path) as swarm:
        gather([swarm])
        for peer in swarm.joiners:
            swarm.until(lambda p=peer: p.control.info()["reachable"] == "no", "a verdict", BOUND_S)
        swarm.resume()
        for peer in swarm.peers:
            swarm.until(lambda p=peer: len(rounds_of_all(swarm, p)) >= ROUNDS, "rounds", BOUND_S)
        assert swarm.founder.control.info()["reachable"] == "yes"
        assert digests_by_head([peer.events() for peer in swarm.peers])
        composed = [event for peer in swarm.peers for event in peer.events("exchange-chosen")]
        full = [event for event in composed if len(event["members"]) == len(NAMES)]
        assert full
        founder = swarm.founder.peer_id
        owners = [dict(zip(event["members"], event["shares"], strict=True)) for event in full]
        assert any(
            shares == {peer: int(peer == founder) * shares[founder] for peer in shares}
            for shares in owners
            if shares
        ), "only the one that can be dialled"
