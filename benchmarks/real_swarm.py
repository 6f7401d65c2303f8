"""Real daemons on this machine: rounds, triggers, DHT traffic, then what a death costs a round.

    python benchmarks/real_swarm.py --peers 16 --seconds 120 --faults 10
    python benchmarks/real_swarm.py --peers 5 --seconds 30 --faults 4
    python benchmarks/real_swarm.py --peers 4 --faults 10 --pass-seconds 4 --ring-upload "1 Mbit/s"
    python benchmarks/real_swarm.py --peers 3 --paused 1 --seconds 60

Each peer is `atom` with its own DHT node, sockets and processes, and one thread for arithmetic; the
model is tiny. A pass takes `--pass-seconds`, most of them asleep, as on a device of its own: else
the peers' arithmetic, on cores that they share, is what is measured. A peer takes about 500 MB and,
while starting, ten seconds of a core. `--faults` kills (SIGKILL) and freezes (SIGSTOP) one peer at
a time, in turn, and starts or thaws it again. `--ring-upload` holds every peer to that rate, so
that a ring of the tiny model takes a second or two, and each fault falls into one. `--paused`
peers, the last ones, are paused by their owners once everybody trains: what the others do is
measured when they have got used to it.

triggers: all-reduces that were begun; early: with less promised than the global batch; found_short:
calls for promises that found less than the leases had said, and began none. late: from the pass
that completed the global batch to the first PREPARE. group: from there to the ring at its last
member. DHT: what the libp2p daemons read from all their sockets, those to our own processes too.
named: until another peer's log names the victim; only a victim in a ring is named, others are
simply not waited for. longer, ratio: the longest gap between two commits around the fault, less the
usual gap and over it.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from real_rounds import (
    Round,
    commits,
    found_short,
    gaps,
    median_gap,
    named_at,
    rings,
    rounds_of,
    triggers,
)
from sides import machine, positive, publish

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else it kills some forked children (grpc/grpc#43055)
sys.path += [str(Path(__file__).parents[1] / "tests" / place) for place in (".", "swarm")]
from swarm_of_processes import Peer, Swarm, endless, gather, swarm_in

HERE = str(Path(__file__).parent)
PROGRAM = ("-c", f"import sys; sys.path.append({HERE!r}); import real_peer; real_peer.main()")
BOUND_S = 120.0
"""For a few rounds."""
RESTART_S = 300.0
GRACE_S = 12.0
SETTLED_ROUNDS = 3
USED_TO_PAUSE_S = 12.0
GLOBAL_BATCH = 96


def main() -> None:
    options = _options()
    os.environ["ATOM_REAL_PASS_S"] = str(options.pass_seconds)
    names = [f"p{number}" for number in range(options.peers)]
    with (
        tempfile.TemporaryDirectory(prefix="atom-real-") as folder,
        swarm_in(Path(folder), endless("real", GRACE_S, 50), names) as swarm,
    ):
        if options.ring_upload:
            hold_uploads(swarm, options.ring_upload)
        start_s = gathered(swarm)
        swarm.resume()
        swarm.until(lambda: all_at(swarm, SETTLED_ROUNDS), "first rounds", BOUND_S * options.peers)
        pause(swarm, options.paused)
        calm = measured(swarm, options.seconds)
        in_ring = bool(options.ring_upload)
        faults = [strike(swarm, number, in_ring) for number in range(options.faults)]
    _publish(options.peers, {"start_s": start_s, **calm}, faults)


def hold_uploads(swarm: Swarm, rate: str) -> None:
    for peer in swarm.peers:
        peer.configure(f'upload = "{rate}"')


def gathered(swarm: Swarm) -> float:
    """Seconds until everybody was in, and stood still."""
    for peer in swarm.peers:
        peer.program = PROGRAM
    begun = time.monotonic()
    swarm.found(standing=True)
    gather(swarm)
    return time.monotonic() - begun


def all_at(swarm: Swarm, round_number: int) -> bool:
    return all(peer.last_round >= round_number for peer in swarm.peers)


def pause(swarm: Swarm, number: int) -> None:
    """The last `number` peers; returns when the others are past waiting for their work."""
    for peer in swarm.peers[len(swarm.peers) - number :]:
        peer.ask("pause")
    used_to_it_at = time.monotonic() + (USED_TO_PAUSE_S if number else 0.0)
    swarm.until(lambda: time.monotonic() >= used_to_it_at, "a while", BOUND_S)


def measured(swarm: Swarm, seconds: float) -> dict[str, float]:
    """Lets the swarm train; what came of it."""
    since, before = time.time(), _dht_bytes(swarm)
    ends_at = time.monotonic() + seconds
    swarm.until(lambda: time.monotonic() >= ends_at, "the time", seconds + BOUND_S)
    moved = _dht_bytes(swarm) - before
    logs = [peer.events() for peer in swarm.peers]
    steps = [at for at in commits(logs[0]) if at >= since]
    rounds = rounds_of(logs, GLOBAL_BATCH, since)
    begun = triggers(logs, since)
    return {
        "rounds": len(steps),
        "round_s": median_gap(steps),
        "slowest_s": max(gaps(steps), default=float("nan")),
        "triggers": len(begun),
        "early": sum(promised < GLOBAL_BATCH for promised in begun),
        "found_short": sum(found_short(log, since) for log in logs),
        **_delays(rounds),
        "dht_kb_per_peer_s": moved / len(swarm.peers) / seconds / 1e3,
        "memory_mb_per_peer": _memory_bytes(swarm) / len(swarm.peers) / 1e6,
    }


def _delays(rounds: list[Round]) -> dict[str, float]:
    late = [one.late_s for one in rounds if one.late_s is not None]
    forming = [one.forming_s for one in rounds if one.forming_s is not None]
    unknown = [float("nan")]
    return {
        "late_s": statistics.median(late or unknown),
        "latest_s": max(late or unknown),
        "group_s": statistics.median(forming or unknown),
    }


def strike(swarm: Swarm, number: int, in_ring: bool) -> dict[str, Any]:
    """Kills or freezes one peer, waits until the others have gone on, brings it back."""
    victim = swarm.peers[(number // 2 + 1) % len(swarm.peers)]
    others = [peer for peer in swarm.peers if peer is not victim]
    usual_s = median_gap(commits(others[0].events())[-20:])
    kind = "killed" if number % 2 == 0 else "frozen"
    if in_ring:
        swarm.until(lambda: rings(victim.events()), "a ring", BOUND_S)
    marks = {peer.name: peer.last_round for peer in others}
    struck_at = time.time()
    if kind == "killed":
        victim.kill()
    else:
        victim.freeze(whole_family=True)
    swarm.until(
        lambda: all(peer.last_round >= marks[peer.name] + 3 for peer in others), kind, BOUND_S
    )
    named = [at for peer in others for at in named_at(peer.events(), victim.peer_id, struck_at)]
    around = [at for at in commits(others[0].events()) if at > struck_at - 2 * usual_s]
    gap_s = max(gaps(around))
    _bring_back(swarm, victim, kind)
    return {
        "kind": kind,
        "named_s": min(named) - struck_at if named else None,
        "gap_s": gap_s,
        "usual_s": usual_s,
        "ratio": gap_s / usual_s,
    }


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
    """Read so far by the libp2p daemons, which carry the DHT's traffic."""
    daemons = [p for peer in swarm.peers for p in peer.family() if "p2pd" in p.name()]
    return sum(process.io_counters().read_chars for process in daemons)


def _memory_bytes(swarm: Swarm) -> int:
    """Proportional shares, so that pages that peers have in common count once."""
    return sum(p.memory_full_info().pss for peer in swarm.peers for p in peer.family())


def _publish(peers: int, calm: dict[str, float], faults: list[dict[str, Any]]) -> None:
    for kind in ("killed", "frozen"):
        of_kind = [fault for fault in faults if fault["kind"] == kind]
        if of_kind:
            sys.stderr.write(f"{len(of_kind)} {kind}: {_told(of_kind)}\n")
    rows = [[str(peers), *(f"{value:.3g}" for value in calm.values())]]
    body = {"benchmark": "real-swarm", "peers": peers, "calm": calm, "faults": faults}
    publish(["peers", *calm], rows, {**body, "machine": machine()})


def _told(faults: list[dict[str, Any]]) -> str:
    named = [fault["named_s"] for fault in faults if fault["named_s"] is not None]
    ratios = [fault["ratio"] for fault in faults]
    words = f"{len(named)} of them in a ring"
    if named:
        words += f" and named after {statistics.median(named):.2f} s, at most {max(named):.2f}"
    longer = statistics.median(fault["gap_s"] - fault["usual_s"] for fault in faults)
    words += f"; {longer:.2f} s longer"
    return f"{words}, ratio {statistics.median(ratios):.2f}, at most {max(ratios):.2f}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=positive, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--paused", type=int, default=0, help="of the peers")
    parser.add_argument("--pass-seconds", type=float, default=0.5, help="asleep; 0: no rest")
    parser.add_argument("--ring-upload", metavar="RATE", help="every fault falls into a ring")
    return parser.parse_args()


if __name__ == "__main__":
    main()
