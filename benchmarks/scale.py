"""What the decision code and the directory cost as a swarm grows, on a virtual clock.

python benchmarks/scale.py
python benchmarks/scale.py --peers 16 64 256 --rounds 5
"""

import argparse
import statistics
from typing import Any

from scale_world import World
from sides import machine, positive, publish

WARM_UP_ROUNDS = 1


def main() -> None:
    options = _options()
    results, rows = [], []
    for peers in options.peers:
        found = measure(peers, options.rounds, options.sequences, options.seed)
        results.append({"peers": peers, **found})
        rows.append([str(peers), *(_cell(value) for value in found.values())])
    publish([*results[0]], rows, {"benchmark": "scale", "machine": machine(), "results": results})


def measure(peers: int, rounds: int, sequences: int, seed: int) -> dict[str, Any]:
    """One swarm for so many rounds, the first of them apart."""
    world = World(peers, sequences, seed)
    world.run_rounds(WARM_UP_ROUNDS)
    began_s, world.cpu_s, world.dht_bytes = world.now, 0.0, 0
    known = set(world.rounds)
    world.told_bytes.clear()
    world.run_rounds(WARM_UP_ROUNDS + rounds)
    seconds = world.now - began_s
    done = [t for head, t in world.rounds.items() if head not in known and t.ringing is not None]
    late = [t.asked - t.reached for t in done if t.asked is not None and t.reached is not None]
    group = [t.ringing - t.asked for t in done if t.asked is not None and t.ringing is not None]
    return {
        "round_s": seconds / rounds,
        "trigger_s": statistics.median(late),
        "latest_trigger_s": max(late),
        "group_s": statistics.median(group),
        "early": sum(t.early for t in done),
        "dht_kb_per_peer_s": world.dht_bytes / peers / seconds / 1e3,
        "told_mb_by_busiest_per_round": max(world.told_bytes.values()) / rounds / 1e6,
        "cpu_ms_per_peer_s": 1e3 * world.cpu_s / peers / seconds,
    }


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=positive, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--sequences", type=positive, default=16, help="per peer and round")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
