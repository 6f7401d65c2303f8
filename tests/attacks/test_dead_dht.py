"""A running swarm of four continues while every DHT process of it is dead.

Two peers' DHT processes are frozen (SIGSTOP: they answer nothing), two are killed (SIGKILL), and so
is each one that is started in their place. The long form is `ATOM_DEAD_DHT_S=600`.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
import pytest
from swarm_of_four import TIMEOUT_S, assert_it_continues, assert_one_chain, four
from swarm_of_processes import Peer, Swarm

__all__ = ["four"]

DEAD_S = float(os.environ.get("ATOM_DEAD_DHT_S", "60"))
"""Time for which all DHT processes are dead; an unreadable lease ends after eight seconds."""
DHT_PROGRAM = "atom.swarm.dht.process"


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


@pytest.mark.timeout(DEAD_S + TIMEOUT_S)
def test_a_swarm_of_four_continues_without_any_dht(four: Swarm) -> None:
    with dead_dht(four.peers) as death:
        assert_it_continues(four, DEAD_S)
        assert death.deaths >= len(four.peers), "no DHT process was alive to die"
    assert all(peer.events("directory-unavailable") for peer in four.peers)
    assert_one_chain(four)
