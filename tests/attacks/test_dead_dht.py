"""A running swarm of four continues while every DHT process of it is dead.

Two peers' DHT processes are frozen (SIGSTOP: they answer nothing), two are killed (SIGKILL), and so
is each one that is started in their place. The long form is `ATOM_DEAD_DHT_S=600`.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from swarm_history import all_end_on_one_chain, contribution
from swarm_of_processes import START_S, Peer, Swarm, endless, gather, swarm_in

DEAD_S = float(os.environ.get("ATOM_DEAD_DHT_S", "60"))
"""Time for which all DHT processes are dead; an unreadable lease ends after eight seconds."""
SOON_S = 60.0
"""Bound on the time until a round is committed, on a busy machine."""
RUN = "dead-dht"
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


@pytest.mark.timeout(DEAD_S + 4 * START_S + 4 * SOON_S)
def test_a_swarm_of_four_continues_without_any_dht(four: Swarm) -> None:
    everybody = {peer.peer_id for peer in four.peers}

    def all_are_in() -> bool:
        return all(p.rounds and set(p.rounds[-1]["members"]) == everybody for p in four.peers)

    four.until(all_are_in, "a round of all four", START_S)
    with dead_dht(four.peers) as death:
        ends_at = time.monotonic() + DEAD_S
        four.until(lambda: time.monotonic() >= ends_at, "the end of the outage", DEAD_S + 1)
        four.until(four.all_see_all, "each peer sees all others", SOON_S)
        marks = [len(peer.rounds) for peer in four.peers]
        four.until(lambda: all_contribute_since(four, marks), "a round with each of them", SOON_S)
        assert death.deaths >= len(four.peers), "no DHT process was alive to die"
    assert all(peer.events("directory-unavailable") for peer in four.peers)
    branches = [event for peer in four.peers for event in peer.rounds if event["branch"]]
    assert branches == [], "a peer went on alone, as if the others were dead"
    assert all_end_on_one_chain(four, RUN) == 0
