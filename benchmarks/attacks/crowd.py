"""A thousand identities from one machine against an open swarm of four, and one true newcomer.

    python -m benchmarks.attacks.crowd                          # 1,000 identities in ten minutes
    python -m benchmarks.attacks.crowd --identities 300 --seconds 180
    python -m benchmarks.attacks.crowd --quick                  # a test run; its figures say little

Real daemons on loopback with a tiny model; passes sleep. The crowd (`crowd_identities.py`) has half
a core; before and after it the same swarm trains beside an idle burner with the same share. For the
last part of the time a true newcomer joins.

calm_s, crowd_s: seconds per round. ratio: crowd over calm; the aim is at most 1.25. votes, parts:
rounds in which an identity of the crowd got a vote, and exchanges in which it owned a part; both
must be 0. counted: rounds with work that an identity of the crowd promised. broken: exchanges that
broke. newcomer_s: from its start to the first round with its work, start of the program included.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Any

from benchmarks.attacks.share import IDLE, hostile
from benchmarks.attacks.swarm import measured, target_of, training_swarm
from benchmarks.shared.program import parser_of, publish, say
from benchmarks.shared.real_swarm import Peer, Swarm

AIM = 1.25
PEERS = 4
ALONE = 0.75
"""Part of the time before the newcomer joins; the speed of rounds is measured in it."""
JOIN_S = 240.0
"""Bound on the newcomer's time to its first round, even beyond the crowd's time."""

Event = dict[str, Any]


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="atom-crowd-") as folder:
        row = run(Path(folder), options)
    rows = [{"figure": name, "value": _text(value)} for name, value in row.items()]
    publish("crowd", rows, {"figure": "", "value": ""}, peers=PEERS, aim=AIM, **row)


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures."""
    with training_swarm(folder, PEERS, options.pass_seconds, spare=1) as swarm:
        newcomer = swarm.peers.pop()
        peers, target = list(swarm.peers), target_of(swarm.peers, swarm.address)
        plan = {**target, "identities": options.identities, "seconds": options.seconds}

        def calm_per_minute() -> float:
            with hostile(f"attackers {IDLE}", target, folder):
                found = measured(swarm, peers, options.calm_seconds)
            say(f"calm: {found}")
            return found.rounds_per_minute

        calm, since = [calm_per_minute()], time.time()
        with hostile("crowd_identities", plan, folder) as crowd:
            begun = time.monotonic()
            window = measured(swarm, peers, ALONE * options.seconds)
            say(f"beside the crowd: {window} {crowd.counts()}")
            joined_s = join(swarm, newcomer)
            say(f"newcomer: {joined_s}")
            left_s = begun + options.seconds - time.monotonic()
            measured(swarm, peers, max(left_s, 0.0))
            counts = crowd.counts()
        calm.append(calm_per_minute())
        true = {peer.peer_id for peer in swarm.peers if peer.lives}
        logs = [[e for e in peer.events() if e["time"] >= since] for peer in swarm.peers]
    round_s = 60.0 / window.rounds_per_minute if window.rounds_per_minute else float("inf")
    calm_s = 60.0 / statistics.mean(calm)
    speed = {"calm_s": calm_s, "crowd_s": round_s, "ratio": round_s / calm_s}
    harm = {"crashes": window.crashes, "grown_bytes": window.grown_bytes, "load": window.load}
    return {**speed, **told_of_strangers(logs, true), "newcomer_s": joined_s, **harm, **counts}


def join(swarm: Swarm, newcomer: Peer) -> float | None:
    """Start the newcomer; return the seconds to its first round, or None if it got into none."""
    swarm.peers.append(newcomer)
    newcomer.start("join", swarm.address)
    with contextlib.suppress(AssertionError):
        return swarm.until(lambda: takes_part(swarm, newcomer), "work of the newcomer", JOIN_S)
    return None


def takes_part(swarm: Swarm, newcomer: Peer) -> bool:
    """Return True if a round counts the newcomer's work."""
    return bool(newcomer.lives) and any(
        newcomer.peer_id in contributors(event) for event in swarm.founder.rounds[-20:]
    )


def contributors(event: Event) -> set[str]:
    """Return the peers whose work a round counts."""
    return {p for p, n in zip(event["members"], event["contributed"], strict=True) if n}


def told_of_strangers(logs: Iterable[Sequence[Event]], true: Set[str]) -> dict[str, int]:
    """Count the votes, parts and rounds of the crowd in the logs of the true peers. Pure.

    Args:
        logs: Events of each true peer since the crowd came.
        true: Peer ids of the true peers.
    """
    events = [event for log in logs for event in log]
    rounds = {e["head"]: e for e in events if e["event"] == "round"}.values()
    chosen = [e for e in events if e["event"] == "exchange-chosen"]
    return {
        "rounds": len(rounds),
        "votes": sum(not true.issuperset(e["voters"]) for e in rounds),
        "parts": sum(not true.issuperset(owners(e)) for e in chosen),
        "counted": sum(not true.issuperset(contributors(e)) for e in rounds),
        "exchanges": len(chosen),
        "broken": sum(e["event"] == "exchange-judged" for e in events),
    }


def owners(event: Event) -> set[str]:
    """Return the members of an exchange that own a part of it; of a ring, all members."""
    shares = event["shares"] or [1] * len(event["members"])
    return {member for member, share in zip(event["members"], shares, strict=True) if share}


def _text(value: float | None) -> str:
    return (
        f"{value:.2f}" if isinstance(value, float) else "never" if value is None else f"{value:,}"
    )


def _options() -> argparse.Namespace:
    parser = parser_of(
        __doc__, identities=1000, seconds=600, calm_seconds=60, pass_seconds=0.7, quick=False
    )
    options = parser.parse_args()
    if options.quick:
        options.identities, options.seconds, options.calm_seconds = 25, 15, 5
    return options


if __name__ == "__main__":
    main()
