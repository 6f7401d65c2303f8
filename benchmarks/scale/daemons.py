"""Real daemons on one machine: rounds, triggers, DHT traffic, then the cost of a death.

    python -m benchmarks.scale.daemons --peers 16 --seconds 60 --faults 2 --pass-seconds 2
    python -m benchmarks.scale.daemons --peers 3 --seconds 5

Each peer is `atom` with its own DHT node, sockets and processes, and one thread for arithmetic; the
model is tiny. A pass takes `--pass-seconds`, most of them asleep, as on its own device: else
the peers' arithmetic, on cores that they share, would be measured. A peer takes about 500 MB and,
while starting, ten seconds of a core. `--faults` kills (SIGKILL) and freezes (SIGSTOP) one peer at
a time, in turn, and starts or thaws it again.

triggers: exchanges that began; early: with less promised than the global batch. late: from the pass
that completed the global batch to the first PREPARE. group: from there to the exchange at its last
member. DHT: bytes that the libp2p daemons read from all their sockets, local ones included.
longest_s: the longest gap between two commits around a fault; ratio: over the usual gap.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.shared import daemon_logs
from benchmarks.shared.program import parser_of, publish, say, table
from benchmarks.shared.real_swarm import SLOW_PEER, Peer, Swarm, endless, gather, swarm_in

BOUND_S = 120.0
"""Bound on a few rounds."""
RESTART_S = 300.0
GRACE_S = 12.0
SETTLED_ROUNDS = 3
GLOBAL_BATCH = 96
COLUMNS = {
    "peers": "", "start_s": ".3g", "rounds": "", "round_s": ".3g", "slowest_s": ".3g",
    "triggers": "", "early": "", "late_s": ".3g", "latest_s": ".3g",
    "group_s": ".3g", "dht_kb_per_peer_s": ".3g", "memory_mb_per_peer": ".3g",
}  # fmt: skip


def main() -> None:
    parser = parser_of(
        __doc__, peers=3, seconds=20.0, faults={"type": int, "default": 0}, pass_seconds=0.5
    )
    options = parser.parse_args()
    os.environ["ATOM_REAL_PASS_S"] = str(options.pass_seconds)
    names = [f"p{number}" for number in range(options.peers)]
    with (
        tempfile.TemporaryDirectory(prefix="atom-real-") as folder,
        swarm_in(Path(folder), endless("real", GRACE_S, 50), names) as swarm,
    ):
        row = {"peers": options.peers, "start_s": gathered(swarm)}
        swarm.resume()
        swarm.until(lambda: all_at(swarm, SETTLED_ROUNDS), "first rounds", BOUND_S * options.peers)
        row |= measured(swarm, options.seconds)
        faults = [strike(swarm, number) for number in range(options.faults)]
    say(table(faults, {"fault": "", "longest_s": ".2f", "ratio": ".2f"}))
    publish("daemons", [row], COLUMNS, faults=faults)


def gathered(swarm: Swarm) -> float:
    """Start all peers without training; return the seconds until all see each other."""
    for peer in swarm.peers:
        peer.program = SLOW_PEER
    begun = time.monotonic()
    swarm.found(standing=True)
    gather(swarm)
    return time.monotonic() - begun


def all_at(swarm: Swarm, round_number: int) -> bool:
    return all(peer.last_round >= round_number for peer in swarm.peers)


def measured(swarm: Swarm, seconds: float) -> dict[str, float]:
    """Let the swarm train for so long; return its figures."""
    since, before = time.time(), _dht_bytes(swarm)
    ends_at = time.monotonic() + seconds
    swarm.until(lambda: time.monotonic() >= ends_at, "the time", seconds + BOUND_S)
    moved = _dht_bytes(swarm) - before
    logs = [peer.events() for peer in swarm.peers]
    steps = [at for at in daemon_logs.commits(logs[0]) if at >= since]
    rounds = daemon_logs.rounds_of(logs, GLOBAL_BATCH, since)
    begun = daemon_logs.triggers(logs, since)
    return {
        "rounds": len(steps),
        "round_s": daemon_logs.median_gap(steps),
        "slowest_s": max(daemon_logs.gaps(steps), default=float("nan")),
        "triggers": len(begun),
        "early": sum(promised < GLOBAL_BATCH for promised in begun),
        **_delays(rounds),
        "dht_kb_per_peer_s": moved / len(swarm.peers) / seconds / 1e3,
        "memory_mb_per_peer": _memory_bytes(swarm) / len(swarm.peers) / 1e6,
    }


def _delays(rounds: list[daemon_logs.Round]) -> dict[str, float]:
    late = [one.late_s for one in rounds if one.late_s is not None]
    forming = [one.forming_s for one in rounds if one.forming_s is not None]
    unknown = [float("nan")]
    return {
        "late_s": statistics.median(late or unknown),
        "latest_s": max(late or unknown),
        "group_s": statistics.median(forming or unknown),
    }


def strike(swarm: Swarm, number: int) -> dict[str, Any]:
    """Kill or freeze one peer, wait until the others have gone on, bring the peer back."""
    victim = swarm.peers[(number // 2 + 1) % len(swarm.peers)]
    others = [peer for peer in swarm.peers if peer is not victim]
    usual_s = daemon_logs.median_gap(daemon_logs.commits(others[0].events())[-20:])
    kind = "killed" if number % 2 == 0 else "frozen"
    marks = {peer.name: peer.last_round for peer in others}
    struck_at = time.time()
    if kind == "killed":
        victim.kill()
    else:
        victim.freeze(whole_family=True)
    swarm.until(
        lambda: all(peer.last_round >= marks[peer.name] + 3 for peer in others), kind, BOUND_S
    )
    commits = daemon_logs.commits(others[0].events())
    longest_s = max(daemon_logs.gaps([at for at in commits if at > struck_at - 2 * usual_s]))
    _bring_back(swarm, victim, kind)
    return {"fault": kind, "longest_s": longest_s, "ratio": longest_s / usual_s}


def _bring_back(swarm: Swarm, victim: Peer, kind: str) -> None:
    lives = victim.lives
    if kind == "killed":
        victim.start()
        swarm.until(lambda: victim.lives > lives, "a new life", RESTART_S)
    else:
        victim.thaw()
    goal = max(peer.last_round for peer in swarm.peers) + SETTLED_ROUNDS
    swarm.until(lambda: all_at(swarm, goal), "rounds of all", BOUND_S)


def _dht_bytes(swarm: Swarm) -> int:
    """Return the bytes that the libp2p daemons have read so far: the DHT's traffic."""
    daemons = [p for peer in swarm.peers for p in peer.family() if "p2pd" in p.name()]
    return sum(process.io_counters().read_chars for process in daemons)


def _memory_bytes(swarm: Swarm) -> int:
    """Return the memory of all peers; shared pages count once."""
    return sum(p.memory_full_info().pss for peer in swarm.peers for p in peer.family())


if __name__ == "__main__":
    main()
