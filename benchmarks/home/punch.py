"""Real daemons behind home routers that open no port: which of them connect by hole punching.

    python -m benchmarks.home.punch
    python -m benchmarks.home.punch --cases steady random

Networks: `benchmarks/shared/routers.py`, with Linux as the routers' translation of addresses; no
delay. The founder has a public address, all other peers are behind routers. The model is tiny.
Needs root.

Cases: `steady`, two homes whose routers keep the source port of a connection; `provider`, one of
them behind a provider's translation, too; `random`, the second home's router takes a random port
for each destination; `late`, such a home joins a swarm of two steady homes.

settled s: from the moment when all daemons run until each peer's own word is the expected one, and
each peer had a part in a round. reach: the peers' own words. owners: peers that owned parts in
the last exchange (in a ring, all members do), of its members. broken: exchanges that broke.
"""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.home.reach import all_train
from benchmarks.shared.program import parser_of, publish, say_row
from benchmarks.shared.real_swarm import Swarm, endless, swarm_in
from benchmarks.shared.routers import internet

START_S = 300.0
BOUND_S = 120.0
LASTS_S = 20.0
"""Time for which a settled swarm is watched."""
COLUMNS = {"case": "", "settled s": ".1f", "reach": "", "owners": "", "rounds": "", "broken": ""}
HOMES = {
    "steady": ["steady", "steady"],
    "provider": ["steady", "provider"],
    "random": ["steady", "random"],
    "late": ["steady", "steady", "random"],
}
"""Kinds of the homes of each case."""


def measured(case: str, stack: ExitStack) -> dict[str, Any]:
    """Run one case, and return its row."""
    net = stack.enter_context(internet())
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atom-punch-")))
    names = ["founder", *(f"home{n}" for n in range(1, len(HOMES[case]) + 1))]
    swarm = stack.enter_context(swarm_in(folder, endless("punch", 2, 50), names))
    hosts = [net.host(), *(net.home(kind)[0] for kind in HOMES[case])]
    for peer, host in zip(swarm.peers, hosts, strict=True):
        peer.namespace = host.namespace
        peer.configure("", "0.0.0.0")
    swarm.host = "0.0.0.0"
    swarm.found()
    swarm.invite()
    swarm.until(lambda: all(peer.lives for peer in swarm.peers), "all peers", START_S)
    two_steady = HOMES[case].count("random") + 2 <= len(HOMES[case])
    ways = {"steady": "punched" if two_steady else "called", "random": "called"}
    ways["provider"] = ways["steady"]
    expected = ["open", *(ways[kind] for kind in HOMES[case])]
    settled_s = swarm.until(
        lambda: reach_of(swarm) == expected and all_train(swarm), f"{expected}", BOUND_S
    )
    until = time.monotonic() + LASTS_S
    swarm.until(lambda: time.monotonic() > until, "the end of the watch", 2 * LASTS_S, 1.0)
    chosen = [event for peer in swarm.peers for event in peer.events("exchange-chosen")]
    last = max(chosen, key=lambda event: event["time"])
    shares = last["shares"] or [1] * len(last["members"])
    owners = f"{sum(map(bool, shares))} of {len(shares)}"
    broken = sum(len(peer.events("ring-broken")) for peer in swarm.peers)
    rounds = min(len(peer.rounds) for peer in swarm.peers)
    figures = case, settled_s, ", ".join(reach_of(swarm)), owners, rounds, broken
    return dict(zip(COLUMNS, figures, strict=True))


def reach_of(swarm: Swarm) -> list[str]:
    """Return how each peer is reached, by its own word."""
    return [peer.info().get("reach", "") if peer.lives else "" for peer in swarm.peers]


def main() -> None:
    """Measure all cases that the command line names."""
    arguments = parser_of(__doc__, cases=[*HOMES]).parse_args()
    rows = []
    for case in arguments.cases:
        with ExitStack() as stack:
            rows.append(measured(case, stack))
        say_row(rows[-1], COLUMNS)
    publish("punch", rows, COLUMNS)


if __name__ == "__main__":
    main()
