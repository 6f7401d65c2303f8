"""A swarm of real daemons on loopback under measurement: speed of its rounds, crashes, memory.

A pass sleeps for most of its time, as on its own device, so the processors of this machine do
not bound the rounds.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from atom.daemon.model.kept_run import KeptRun
from atom.swarm.addresses import parse_join_address
from atom.swarm.records.manifest import manifest_digest
from benchmarks.shared.daemon_logs import commits
from benchmarks.shared.real_swarm import (
    SLOW_PEER,
    Peer,
    Swarm,
    endless,
    gather,
    swarm_in,
)

RUN, GRACE_S, SNAPSHOT_ROUNDS = "attacked", 12.0, 50
BATCH_PER_PEER = 16
"""Sequences: four passes of each peer make a round."""
BOUND_S = 240.0
"""Bound on the time until all peers vote, and on one round."""


@contextlib.contextmanager
def training_swarm(root: Path, peers: int, pass_s: float, spare: int = 0) -> Iterator[Swarm]:
    """Start an open run in which each peer has earned its vote.

    Args:
        root: Empty folder.
        peers: Number of peers that train.
        pass_s: Time that a pass sleeps, in seconds.
        spare: Number of further peers that do not start; they are the last of `swarm.peers`.
    """
    os.environ["ATOM_REAL_PASS_S"] = str(pass_s)
    run = endless(RUN, GRACE_S, SNAPSHOT_ROUNDS, sequences=BATCH_PER_PEER * peers)
    names = [f"p{number}" for number in range(peers + spare)]
    with swarm_in(root, run, names, memory="auto") as swarm:
        for peer in swarm.peers:
            peer.program = SLOW_PEER
        waiting = swarm.peers[peers:]
        del swarm.peers[peers:]
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        swarm.until(lambda: all_vote(swarm), "votes of all", BOUND_S)
        swarm.peers += waiting
        yield swarm


def all_vote(swarm: Swarm) -> bool:
    """Return True if each peer's last round gives each of them a vote."""
    members = {peer.peer_id for peer in swarm.peers}
    return all(peer.rounds and set(peer.rounds[-1]["voters"]) >= members for peer in swarm.peers)


def target_of(peers: Sequence[Peer], address: str) -> dict[str, Any]:
    """Return the facts that a stranger can learn about a run, for an attack (JSON)."""
    join = parse_join_address(address)
    return {
        "run": join.run,
        "owner": join.owner,
        "run_id": manifest_digest(KeptRun.read(peers[0].state).manifest).hex(),
        "peers": [peer.peer_id for peer in peers],
        "dht": [dht_address(peer) for peer in peers],
        "doors": [peer.info()["data_addresses"][0] for peer in peers],
    }


def dht_address(peer: Peer) -> str:
    """Return the multiaddr of a peer's DHT node."""
    [p2pd] = [process for process in peer.family() if "p2pd" in process.name()]
    connections = p2pd.net_connections("tcp")
    [port] = {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer.peer_id}"


# ---- a window of time


@dataclass(frozen=True)
class Window:
    """Measurements of one stretch of time."""

    rounds_per_minute: float
    crashes: int
    """DHT processes that ended."""
    grown_bytes: int
    """Growth of the resident memory of the peer that grew most."""
    load: float
    """Load average of the machine at the end, over one minute."""


def measured(swarm: Swarm, peers: Sequence[Peer], seconds: float) -> Window:
    """Let the swarm train for `seconds`; return the speed of its rounds and the harm done.

    A window without a commit goes on until there is one, or for BOUND_S.
    """
    since, crashed = time.time(), crashes(peers)
    before = [resident_bytes(peer) for peer in peers]
    ends_at = since + seconds
    swarm.until(lambda: time.time() >= ends_at, "the end of the window", seconds + 5.0)
    if not any(commit >= since for commit in commits(peers[0].events())):
        with contextlib.suppress(AssertionError):
            swarm.until(lambda: commits(peers[0].events())[-1] >= since, "a round", BOUND_S)
    ended = time.time()
    grown = [resident_bytes(peer) - had for peer, had in zip(peers, before, strict=True)]
    speed = rounds_per_minute(commits(peers[0].events()), since, ended)
    return Window(speed, crashes(peers) - crashed, max(grown), os.getloadavg()[0])


def rounds_per_minute(times: Sequence[float], since: float, until: float) -> float:
    """Return the speed of rounds in a window, with parts of rounds at its ends.

    Args:
        times: Times of all commits, in seconds.
        since: Beginning of the window.
        until: End of the window.
    """
    inside = [at for at in times if since <= at <= until]
    first = max((at for at in times if at < since), default=since)
    if not inside:
        return 0.0
    spared = max(since - first, 0.0) / (inside[0] - first)  # part of the first round
    usual = (inside[-1] - first) / len(inside)
    rest = min((until - inside[-1]) / usual, 1.0)
    return 60.0 * (len(inside) - spared + rest) / (until - since)


def crashes(peers: Sequence[Peer]) -> int:
    """Return how many DHT processes have ended since the start, until just now."""
    return sum(len(peer.events("dht-process-ended")) for peer in peers)


def resident_bytes(peer: Peer) -> int:
    """Return the resident memory of a daemon and all its processes."""
    total = 0
    for process in peer.family():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total
