"""Cost of the decision code and of the directory as a swarm grows, on a virtual clock.

    python -m benchmarks.scale.virtual
    python -m benchmarks.scale.virtual --peers 16 64 256 --rounds 5
    python -m benchmarks.scale.virtual --peers 4 --rounds 1

Columns: docs/scale.md.
"""

import statistics
from typing import Any

from benchmarks.scale.virtual_world import World
from benchmarks.shared.program import parser_of, publish

WARM_UP_ROUNDS, SEQUENCES, SEED = 1, 16, 1
"""Sequences: of each peer in a round."""
COLUMNS = {
    "peers": "", "round_s": ".3g", "trigger_s": ".3g", "latest_trigger_s": ".3g",
    "group_s": ".3g", "early": "", "dht_kb_per_peer_s": ".3g",
    "told_mb_by_busiest_per_round": ".3g", "cpu_ms_per_peer_s": ".3g",
}  # fmt: skip


def main() -> None:
    options = parser_of(__doc__, peers=[16, 64], rounds=5).parse_args()
    publish("scale", [measured(peers, options.rounds) for peers in options.peers], COLUMNS)


def measured(peers: int, rounds: int) -> dict[str, Any]:
    """Run one swarm for so many rounds after the warm-up."""
    world = World(peers, SEQUENCES, SEED)
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
        "peers": peers,
        "round_s": seconds / rounds,
        "trigger_s": statistics.median(late),
        "latest_trigger_s": max(late),
        "group_s": statistics.median(group),
        "early": sum(t.early for t in done),
        "dht_kb_per_peer_s": world.dht_bytes / peers / seconds / 1e3,
        "told_mb_by_busiest_per_round": max(world.told_bytes.values()) / rounds / 1e6,
        "cpu_ms_per_peer_s": 1e3 * world.cpu_s / peers / seconds,
    }


if __name__ == "__main__":
    main()
