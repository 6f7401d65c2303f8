"""A running swarm of four continues while its DHT is surrounded, and while its DHT is dead.

Surrounded: twenty silent nodes lie around the key of its leases. Node ids are free, so the nearest
twenty to the key belong to the attacker. They take every lease and return none, and a reader of the
DHT sees at most its own.

Dead: two peers' DHT processes are frozen (SIGSTOP: they answer nothing), two are killed (SIGKILL),
and so is each one that is started in their place. The long form is `ATOM_DEAD_DHT_S=600`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from dht_stock import end_all
from swarm_of_four import (
    RUN,
    TIMEOUT_S,
    assert_it_continues,
    assert_no_branch,
    assert_one_chain,
    four,
)
from swarm_of_processes import Peer, Swarm

from atom.swarm.addresses import parse_join_address
from atom.swarm.records.lease import LEASE_SECONDS
from atom.swarm.records.manifest import lease_key

__all__ = ["four"]

NODES = 20
ECLIPSED_S = float(os.environ.get("ATOM_ECLIPSED_S", 2.5 * LEASE_SECONDS))
DEAD_S = float(os.environ.get("ATOM_DEAD_DHT_S", 2.5 * LEASE_SECONDS))
"""Time for which all DHT processes are dead. A lease that nobody could renew ends in it."""
DHT_PROGRAM = "atom.swarm.dht.process"


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
def test_a_swarm_of_four_continues_while_its_leases_are_eclipsed(four: Swarm) -> None:
    join = parse_join_address(four.address)
    with silent_nodes(join.bootstrap[0], lease_key(RUN, join.owner)):
        assert_it_continues(four, ECLIPSED_S)
    assert_no_branch(four)


@pytest.mark.timeout(DEAD_S + TIMEOUT_S)
def test_a_swarm_of_four_continues_without_any_dht(four: Swarm) -> None:
    with dead_dht(four.peers) as death:
        assert_it_continues(four, DEAD_S)
        assert death.deaths >= len(four.peers), "no DHT process was alive to die"
    assert all(peer.events("directory-unavailable") for peer in four.peers)
    assert_one_chain(four)
