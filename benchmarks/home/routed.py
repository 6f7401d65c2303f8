"""Real daemons behind home routers on slow lines: the swarm's speed beside one peer alone.

    python -m benchmarks.home.routed
    python -m benchmarks.home.routed --homes founder --codec sparse --peers 8 16
    python -m benchmarks.home.routed --homes mapped --peers 3 --round-seconds 20 --rounds 1

The swarm, its small rounds and the meaning of most columns are those of `benchmarks.home.run`. The
networks are those of `benchmarks/shared/routers.py`. Needs root.

Homes: `founder`, only the founder can be dialled, and all others are behind routers that take a
random port for each destination; `mapped`, the founder has a public address, and the router of each
other home opens ports; `steady`, the founder has a public address, and the routers of the others
keep ports but open none; `mixed`, as many mapped homes as steady ones, and of the latter one behind
its provider's router and one behind a router with random ports.

owners: the k peers that the formula counts. bound: speed of the swarm as a multiple of one peer, if
the busiest line carries 1 + (n - 2) / k averages of a round and no other time passes. exchange by
bytes: duration of an exchange by the duration of these averages at the line's rate.
"""

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from atom.config.run_file import CODECS, LOCAL_STEPS
from atom.plan.prediction import exchange_bytes
from benchmarks.home.run import terms_of, train
from benchmarks.home.small_round import PARAMETERS
from benchmarks.home.world import Terms, World, shape, swarm_of
from benchmarks.shared.networks import Home
from benchmarks.shared.program import parser_of, publish, say_row
from benchmarks.shared.real_swarm import Peer, gather
from benchmarks.shared.routers import Host, Internet, internet

KINDS = ["founder", "mapped", "steady", "mixed"]
KNOWN_S = 120.0
"""Time for each peer to learn whether others can dial it."""
COLUMNS = {
    "homes": "", "peers": "", "codec": "", "owners": "", "round s": ".1f", "passes s": ".1f",
    "exchange s": ".1f", "rest s": ".1f", "busy": ".3f", "by one alone": ".2f", "bound": ".2f",
    "exchange by bytes": ".2f", "reached": "", "load": ".1f",
}  # fmt: skip


def homes_of(kind: str, peers: int, net: Internet) -> list[tuple[Host, bool]]:
    """Return the founder's machine and the others', each with its wish to open ports."""
    founder = net.host(), False
    behind = range(peers - 1)
    match kind:
        case "mapped":
            return [founder, *((net.home(opens=True)[0], True) for _ in behind)]
        case "steady":
            return [founder, *((net.home()[0], False) for _ in behind)]
        case "mixed":
            mapped = [(net.home(opens=True)[0], True) for _ in behind[: peers // 2]]
            routers = ["random", "provider", *("steady" for _ in behind)]
            others = [(net.home(router)[0], False) for router in routers]
            return [founder, *mapped, *others][:peers]
        case _:
            return [founder, *((net.home("random")[0], False) for _ in behind)]


def owners_of(kind: str, peers: int) -> int:
    """Return the number of peers that may own parts."""
    return {"founder": 1, "mixed": 1 + peers // 2}.get(kind, peers)


@contextmanager
def standing_behind(kind: str, terms: Terms) -> Iterator[World]:
    """Yield a swarm behind routers that knows who can be dialled and does not train yet."""
    with ExitStack() as stack:
        net = stack.enter_context(internet())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atom-routed-")))
        places = [*homes_of(kind, terms.peers, net), (net.host(), False)]
        names = [f"p{number}" for number in range(terms.peers)]
        swarm = stack.enter_context(swarm_of(folder / "swarm", terms, terms.peers, names))
        alone = stack.enter_context(swarm_of(folder / "alone", terms, 1, ["alone"]))
        for peer, (host, maps) in zip([*swarm.peers, *alone.peers], places, strict=True):
            settle(peer, host, maps)
        for each, (host, _) in ((swarm, places[0]), (alone, places[-1])):
            each.host = host.address
            each.found(standing=True)
        gather(swarm, alone)
        swarm.until(
            lambda: all(peer.info().get("reachable") in ("yes", "no") for peer in swarm.joiners),
            "knowledge of reachable peers",
            KNOWN_S,
        )
        lines = [Home(host.namespace, host.address, host.hub, host.outer) for host, _ in places]
        world = World(swarm, alone.founder, dict(zip(names, lines, strict=False)))
        for line in world.places.values():
            shape(line, terms.small.line_bytes_per_s)
        yield world


def settle(peer: Peer, host: Host, maps: bool) -> None:
    """Put a peer onto a machine, before it starts."""
    peer.namespace = host.namespace
    peer.configure("map_ports = true" if maps else "", "0.0.0.0")


def one_row(kind: str, peers: int, codec: str, options: Any) -> dict[str, Any]:
    """Return the figures of one swarm."""
    options.codec, options.rule, options.undialled, options.delay_ms = codec, LOCAL_STEPS, 0, 0.0
    options.passes, options.faults, options.tokens = None, [], 8
    _, terms = terms_of(peers, options.mbit, options.model, options)
    small, owners = terms.small, owners_of(kind, peers)
    carried = exchange_bytes(small.elements, small.number_bytes, peers, owners)
    foreseen_s = carried / small.line_bytes_per_s
    passes_s = small.passes * small.pass_s
    with standing_behind(kind, terms) as world:
        reached = sum(peer.info()["reachable"] == "yes" for peer in world.swarm.peers)
        row = train(world, world.swarm.peers, terms, options.rounds)
    return row | {
        "homes": kind,
        "peers": peers,
        "codec": codec,
        "owners": owners,
        "passes s": passes_s,
        "bound": peers * passes_s / max(passes_s, foreseen_s),
        "exchange by bytes": row["exchange s"] / foreseen_s,
        "reached": reached,
    }


def main() -> None:
    """Measure all rows that the command line names."""
    parser = parser_of(
        __doc__,
        homes={"choices": KINDS, "nargs": "+", "default": KINDS},
        peers=[8],
        codec={"choices": CODECS, "nargs": "+", "default": ["int4"]},
        model={"choices": PARAMETERS, "default": "2.7B"},
        mbit=20.0,
        inner_steps=30,
        useful_tflops=81.6,
        rounds=2,
        round_seconds=120.0,
        model_dim=512,
    )
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("error: network namespaces need root\nhint:  run this program as root")
    rows = list[dict[str, Any]]()
    for row in itertools.product(options.homes, options.peers, options.codec):
        rows.append(one_row(*row, options))
        say_row(rows[-1], COLUMNS)
    publish("routed", rows, COLUMNS, settings=vars(options))


if __name__ == "__main__":
    main()
