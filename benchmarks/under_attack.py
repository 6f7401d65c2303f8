"""Rounds of three training peers while a stranger attacks them with half a core.

    python benchmarks/under_attack.py                       # every attack for 60 s
    python benchmarks/under_attack.py --attacks messages blobs --seconds 120
    python benchmarks/under_attack.py --quick               # does it run? its figures say little

Real daemons on loopback with a tiny model; passes sleep. Attacks and baselines alternate: before
and after each attack the same swarm trains beside an idle burner, which takes half a core and does
nothing. The baseline of an attack is the mean of both.

calm, attacked: rounds per minute. ratio: attacked over calm; the aim is at least 0.8. crashes: DHT
processes of peers that ended during the attack. grown MB: resident memory of the peer that grew
most. load: load average of this machine, which may have other work.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from attack_share import hostile
from attack_swarm import Window, measured, target_of, training_swarm
from sides import machine, positive, publish

from atom.swarm.records.lease import LEASE_SECONDS

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
IDLE = "idle-burner"
TITLES = ["attack", "calm", "attacked", "ratio", "crashes", "grown MB", "load", "counts"]


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="atom-attacked-") as folder:
        rows = run(Path(folder), options)
    body = {"benchmark": "under-attack", "peers": PEERS, "aim": AIM, "rows": rows}
    publish(TITLES, [_cells(row) for row in rows], {**body, "machine": machine()})


def run(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per attack, in order."""
    with training_swarm(folder, PEERS, options.pass_seconds) as swarm:
        target, rows = target_of(swarm.peers, swarm.address), list[dict[str, Any]]()

        def window(name: str, seconds: float) -> tuple[Window, dict[str, Any]]:
            with hostile(f"attackers.py {name}", target, folder) as attack:
                found = measured(swarm, swarm.peers, seconds)
                counts = attack.counts()
            sys.stderr.write(f"{name}: {found} {counts}\n")
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
    """Let what an attack has left behind run out, so that it is not part of the next baseline."""
    if not options.quick:
        measured(swarm, swarm.peers, LEASE_SECONDS)


def _row(name: str, calm: float, attacked: Window, counts: dict[str, Any]) -> dict[str, Any]:
    ratio = attacked.rounds_per_minute / calm if calm else float("nan")
    figures = {"calm_per_minute": calm, "ratio": ratio, "counts": counts}
    return {"attack": name, **figures, **attacked.to_json()}


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["attack"],
        f"{row['calm_per_minute']:.1f}",
        f"{row['rounds_per_minute']:.1f}",
        f"{row['ratio']:.2f}" + " missed" * (row["ratio"] < AIM),
        str(row["crashes"]),
        f"{row['grown_bytes'] / 1e6:.0f}",
        f"{row['load']:.1f}",
        ", ".join(f"{count:,} {name}" for name, count in row["counts"].items()),
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attacks", choices=NAMES, nargs="+", default=list(NAMES))
    parser.add_argument("--seconds", type=positive, default=60, help="of each attack")
    parser.add_argument("--calm-seconds", type=positive, default=30, help="of each baseline")
    parser.add_argument("--pass-seconds", type=float, default=0.7, help="asleep")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.calm_seconds = 5, 3
    return options


if __name__ == "__main__":
    main()
