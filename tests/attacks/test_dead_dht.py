"""A running swarm of three continues while its DHT is surrounded, and while its DHT is dead.

Surrounded: twelve silent nodes lie around the key of its leases. Node ids are free, so the nearest
twelve to the key belong to the attacker. They take every lease and return none, and a reader of the
DHT sees at most its own.

Dead: two peers' DHT processes are frozen (SIGSTOP: they answer nothing), one is killed (SIGKILL),
and so is each one that is started in their place. The long form is `ATOM_DEAD_DHT_S=600`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from dht_stock import end_all
from swarm_history import all_end_on_one_chain, contribution
from swarm_of_processes import START_S, Peer, Swarm, endless, gather, swarm_in

from atom.swarm.addresses import parse_join_address
from atom.swarm.records.lease import LEASE_SECONDS
from atom.swarm.records.manifest import lease_key

RUN = "three"
SOON_S = 60.0
"""Bound on the time until a round is committed, on a busy machine."""
TIMEOUT_S = 5 * START_S + 4 * SOON_S
"""Bound on a test, beside the time that the attack takes."""
NODES = 12
ECLIPSED_S = float(os.environ.get("ATOM_ECLIPSED_S", 2.5 * LEASE_SECONDS))
DEAD_S = float(os.environ.get("ATOM_DEAD_DHT_S", 2.5 * LEASE_SECONDS))
"""Time for which all DHT processes are dead. A lease that nobody could renew ends in it."""
DHT_PROGRAM = "atom.swarm.dht.process"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """Yield three daemons after a round of all of them."""
    # A round of the founder alone must last longer than the others take to fetch its result.
    run = endless(RUN, grace_s=8, snapshot_rounds=10, sequences=1536)
    names = ["ann", "bob", "cleo"]
    with swarm_in(tmp_path_factory.mktemp("of"), run, names, memory="auto") as swarm:
        swarm.slow_lines()
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        everybody = {peer.peer_id for peer in swarm.peers}

        def all_are_in() -> bool:
            return all(p.rounds and {*p.rounds[-1]["members"]} == everybody for p in swarm.peers)

        swarm.until(all_are_in, "a round of all three", START_S)
        yield swarm


def assert_it_continues(swarm: Swarm, seconds: float) -> None:
    """Assert that after `seconds` all see all others, and each still contributes to rounds."""
    ends_at = time.monotonic() + seconds
    swarm.until(lambda: time.monotonic() >= ends_at, "the end of the attack", seconds + 1)
    swarm.until(swarm.all_see_all, "each peer sees all others", SOON_S)
    marks = [len(peer.rounds) for peer in swarm.peers]

    def all_contributed() -> bool:
        return all(
            any(contribution(event, peer.peer_id) for event in peer.rounds[mark:])
            for peer, mark in zip(swarm.peers, marks, strict=True)
        )

    swarm.until(all_contributed, "a round with each of them", SOON_S)


def assert_no_branch(swarm: Swarm) -> None:
    """Assert that no peer went on alone, as if the others were dead."""
    branches = [event for peer in swarm.peers for event in peer.rounds if event["branch"]]
    assert branches == []


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


def dht_processes(peer: Peer) -> list[psutil.Process]:
    """Return the DHT processes of a daemon that are neither frozen nor gone."""
    found = []
    for process in psutil.Process(peer.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            is_dht = DHT_PROGRAM in process.cmdline()
            if is_dht and process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                found.append(process)
    return found


class DeadDht:
    """Freezes or kills DHT processes until it ends."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self.deaths = 0
        self._peers = peers
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(0.2):
            for number, peer in enumerate(self._peers):
                for process in dht_processes(peer):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal((signal.SIGSTOP, signal.SIGKILL)[number % 2])
                        self.deaths += 1


@contextmanager
def dead_dht(peers: Sequence[Peer]) -> Iterator[DeadDht]:
    death = DeadDht(peers)
    death.start()
    try:
        yield death
    finally:
        death.close()
        for peer in peers:
            for process in psutil.Process(peer.pid).children():
                process.resume()


@pytest.mark.timeout(ECLIPSED_S + TIMEOUT_S)
def test_a_swarm_of_three_continues_while_its_leases_are_eclipsed(three: Swarm) -> None:
    join = parse_join_address(three.address)
    with silent_nodes(join.bootstrap[0], lease_key(RUN, join.owner)):
        assert_it_continues(three, ECLIPSED_S)
    assert_no_branch(three)


@pytest.mark.timeout(DEAD_S + TIMEOUT_S)
def test_a_swarm_of_three_continues_without_any_dht(three: Swarm) -> None:
    with dead_dht(three.peers) as death:
        assert_it_continues(three, DEAD_S)
        assert death.deaths >= len(three.peers), "no DHT process was alive to die"
    assert all(peer.events("directory-unavailable") for peer in three.peers)
    assert_no_branch(three)
    assert all_end_on_one_chain(three, RUN) == 0
