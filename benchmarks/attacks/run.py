"""Rounds of three training peers while a stranger attacks them with half a core.

    python -m benchmarks.attacks.run                       # every attack for 60 s
    python -m benchmarks.attacks.run --attacks messages blobs --seconds 120
    python -m benchmarks.attacks.run --quick               # a test run; its figures say little

Real daemons on loopback with a tiny model; passes sleep. Attacks and baselines alternate: before
and after each attack the same swarm trains beside an idle burner, which takes half a core and does
nothing. The baseline of an attack is the mean of both.

calm, attacked: rounds per minute. ratio: attacked over calm; the aim is at least 0.8. crashes: DHT
processes of peers that ended during the attack. grown MB: resident memory of the peer that grew
most. load: load average of this machine, which may have other work.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from atom.swarm.records.lease import LEASE_SECONDS
from benchmarks.attacks.share import IDLE, hostile
from benchmarks.attacks.swarm import Window, measured, target_of, training_swarm
from benchmarks.shared.program import parser_of, publish, say

AIM = 0.8
PEERS = 3
NAMES = (
    "nested-tuples",
    "find-repeats",
    "log-flood",
    "huge-claim",
    "connections",
    "messages",
    "blobs",
    "eclipse",
)
"""Attacks of `attackers.py`."""
COLUMNS = {"attack": "", "calm": ".1f", "attacked": ".1f", "ratio": ".2f", "missed": "",
           "crashes": "", "grown MB": ".0f", "load": ".1f", "counted": ""}  # fmt: skip


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="atom-attacked-") as folder:
        rows = run(Path(folder), options)
    publish("under-attack", rows, COLUMNS, peers=PEERS, aim=AIM)


def run(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per attack, in order."""
    with training_swarm(folder, PEERS, options.pass_seconds) as swarm:
        target, rows = target_of(swarm.peers, swarm.address), list[dict[str, Any]]()

        def window(name: str, seconds: float) -> tuple[Window, dict[str, Any]]:
            with hostile(f"attackers {name}", target, folder) as attack:
                found = measured(swarm, swarm.peers, seconds)
                counts = attack.counts()
            say(f"{name}: {found} {counts}")
            return found, counts

        before, _ = window(IDLE, options.calm_seconds)
        for name in options.attacks:
            attacked, counts = window(name, options.seconds)
            rest(swarm, options)
            after, _ = window(IDLE, options.calm_seconds)
            calm = statistics.mean([before.rounds_per_minute, after.rounds_per_minute])
            rows.append(_row(name, calm, attacked, counts))
            before = after
    return rows


def rest(swarm: Any, options: argparse.Namespace) -> None:
    """Wait until records of an attack have expired, so that the next baseline is calm."""
    if not options.quick:
        measured(swarm, swarm.peers, LEASE_SECONDS)


def _row(name: str, calm: float, attacked: Window, counts: dict[str, Any]) -> dict[str, Any]:
    ratio = attacked.rounds_per_minute / calm if calm else float("nan")
    return {
        "attack": name,
        "calm": calm,
        "attacked": attacked.rounds_per_minute,
        "ratio": ratio,
        "missed": "missed" * (ratio < AIM),
        "crashes": attacked.crashes,
        "grown MB": attacked.grown_bytes / 1e6,
        "load": attacked.load,
        "counted": ", ".join(f"{count:,} {kind}" for kind, count in counts.items()),
        "counts": counts,
    }


def _options() -> argparse.Namespace:
    attacks = {"choices": NAMES, "nargs": "+", "default": list(NAMES)}
    parser = parser_of(
        __doc__, attacks=attacks, seconds=60, calm_seconds=30, pass_seconds=0.7, quick=False
    )
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.calm_seconds = 5, 3
    return options


if __name__ == "__main__":
    main()
