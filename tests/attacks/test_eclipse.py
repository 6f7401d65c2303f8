"""A running swarm of four continues while twenty silent DHT nodes surround the key of its leases.

Node ids are free: the nearest twenty to the key belong to the attacker. They take every lease and
return none, so a reader of the DHT sees at most its own.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from dht_stock import end_all
from swarm_history import all_end_on_one_chain, contribution
from swarm_of_processes import START_S, Swarm, endless, gather, swarm_in

from atom.swarm.addresses import parse_join_address
from atom.swarm.records.manifest import lease_key

NODES = 20
ECLIPSED_S = float(os.environ.get("ATOM_ECLIPSED_S", "45"))
SOON_S = 60.0
"""Bound on the time until a round is committed, on a busy machine."""
RUN = "eclipse"


@contextmanager
def silent_nodes(address: str, key: str) -> Iterator[None]:
    """Surround a key with silent nodes while the context is open."""
    program = [sys.executable, str(Path(__file__).parent / "silent_nodes.py")]
    with subprocess.Popen(
        [*program, key, str(NODES), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "surrounded\n"
            yield
        finally:
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            end_all([member.pid for member in family])


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Swarm]:
    run = endless(RUN, grace_s=8, snapshot_rounds=10)
    with swarm_in(tmp_path, run, ["ann", "bob", "cleo", "dan"], memory="auto") as swarm:
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        yield swarm


def all_contribute_since(swarm: Swarm, marks: Sequence[int]) -> bool:
    """Return True if each peer had a part in a round that it committed after its mark."""
    return all(
        any(contribution(event, peer.peer_id) for event in peer.rounds[mark:])
        for peer, mark in zip(swarm.peers, marks, strict=True)
    )


@pytest.mark.timeout(ECLIPSED_S + 5 * START_S + 4 * SOON_S)
def test_a_swarm_of_four_continues_while_its_leases_are_eclipsed(four: Swarm) -> None:
    everybody = {peer.peer_id for peer in four.peers}

    def all_are_in() -> bool:
        return all(p.rounds and set(p.rounds[-1]["members"]) == everybody for p in four.peers)

    four.until(all_are_in, "a round of all four", START_S)
    join = parse_join_address(four.address)
    with silent_nodes(join.bootstrap[0], lease_key(RUN, join.owner)):
        ends_at = time.monotonic() + ECLIPSED_S
        four.until(lambda: time.monotonic() >= ends_at, "the end of the attack", ECLIPSED_S + 1)
        four.until(four.all_see_all, "each peer sees all others", SOON_S)
        marks = [len(peer.rounds) for peer in four.peers]
        four.until(lambda: all_contribute_since(four, marks), "a round with each of them", SOON_S)
        branches = [event for peer in four.peers for event in peer.rounds if event["branch"]]
    assert branches == [], "a peer went on alone, as if the others were dead"
    assert all_end_on_one_chain(four, RUN) == 0
