"""Real daemons behind home routers: how each peer is reached, and after how many seconds.

    python -m benchmarks.home.reach
    python -m benchmarks.home.reach --cases mapped provider

Networks: `benchmarks/shared/routers.py`, with Linux as the routers' translation of addresses and
miniupnpd as the server of PCP, NAT-PMP and UPnP; no delay. The model is tiny. Needs root.

Cases: `mapped`, the founder's router opens ports; `joiner`, a joiner's router does, and the founder
has a public address; `old`, the same with a router that knows only NAT-PMP and PCP; `provider`, the
joiner's provider translates addresses once more; `household`, two joiners behind one router that
opens ports; `closed`, no router opens ports, the founder has a public address.

together s: from the start of the last joiner to its first round. reached: answer of the other peers
to the question whether they can dial this peer, and the seconds from its start to that answer.
opened: ports that routers had open during the run, and after all daemons had ended.
"""

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.program import parser_of, publish, say_row
from benchmarks.shared.real_swarm import Peer, Swarm, endless, swarm_in
from benchmarks.shared.routers import Host, Internet, internet

BOUND_S = 90.0
COLUMNS = {
    "case": "", "together s": ".1f", "rounds": "", "reached": "", "opened": "", "left open": "",
}  # fmt: skip
CASES = ["mapped", "joiner", "old", "provider", "household", "closed"]
MAPPED = "map_ports = true"


@dataclass(frozen=True)
class Place:
    """A machine for a peer, with further keys of [network] in its peer file."""

    host: Host
    network: str = ""


def places_of(case: str, net: Internet) -> list[Place]:
    """Return the machines of a case, the founder's first."""
    if case == "mapped":
        [founder], [joiner] = net.home(opens=True), net.home()
        return [Place(founder, MAPPED), Place(joiner)]
    founder = net.host()
    kind = "provider" if case == "provider" else "steady"
    homes = {"household": 2}.get(case, 1)
    joiners = net.home(kind, homes, opens=case != "closed", upnp=case != "old")
    wish = "" if case == "closed" else MAPPED
    return [Place(founder), *(Place(each, wish) for each in joiners)]


def measured(case: str, stack: ExitStack) -> dict[str, Any]:
    """Run one case, and return its row."""
    net = stack.enter_context(internet())
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atom-reach-")))
    places = places_of(case, net)
    names = ["founder", *(f"joiner{n}" for n in range(1, len(places)))]
    swarm = stack.enter_context(swarm_in(folder, endless("reach", 2, 50), names))
    for peer, place in zip(swarm.peers, places, strict=True):
        peer.namespace = place.host.namespace
        peer.configure(place.network, "0.0.0.0")
    swarm.host = "0.0.0.0"
    swarm.found()
    began = time.monotonic()
    swarm.invite()
    joined = time.monotonic()
    reached: dict[str, str] = {}

    def settled() -> bool:
        for peer in swarm.peers:
            answer = peer.info().get("reachable", "unknown") if peer.lives else "unknown"
            if answer != "unknown" and peer.name not in reached:
                since = began if peer is swarm.founder else joined
                reached[peer.name] = f"{answer} {time.monotonic() - since:.0f} s"
        return len(reached) == len(swarm.peers) and all_train(swarm)

    together_s = swarm.until(lambda: all_train(swarm), "a round of all", BOUND_S)
    swarm.until(settled, "answers to all", BOUND_S)
    routers = {place.host.router: place.host for place in places if place.host.router}
    opened = sum(len(net.ports(host)) for host in routers.values())
    for peer in swarm.peers:
        peer.ask("leave", 5.0)
    for peer in swarm.peers:
        peer.wait()
    left = sum(len(net.ports(host)) for host in routers.values())
    told = ", ".join(f"{name} {answer}" for name, answer in sorted(reached.items()))
    rounds = min(len(peer.rounds) for peer in swarm.peers)
    figures = case, together_s, rounds, told, opened, left
    return dict(zip(COLUMNS, figures, strict=True))


def all_train(swarm: Swarm) -> bool:
    """Return True if each peer has had a part in some round."""
    return all(peer.lives and has_part(peer) for peer in swarm.peers)


def has_part(peer: Peer) -> bool:
    """Return True if some round counted work of this peer and of another one."""
    members = [event.get("members", ()) for event in peer.rounds]
    return any(len(each) > 1 and peer.peer_id in each for each in members)


def main() -> None:
    """Measure all cases that the command line names."""
    arguments = parser_of(__doc__, cases=CASES).parse_args()
    rows = []
    for case in arguments.cases:
        with ExitStack() as stack:
            rows.append(measured(case, stack))
        say_row(rows[-1], COLUMNS)
    publish("reach", rows, COLUMNS)


if __name__ == "__main__":
    main()
