"""Real daemons behind home routers: how each peer is reached, and after how many seconds.

    python -m benchmarks.home.reach
    python -m benchmarks.home.reach --cases mapped provider

Networks: `benchmarks/shared/routers.py`, with Linux as the routers' translation of addresses and
miniupnpd as the server of PCP, NAT-PMP and UPnP; no delay. The model is tiny. Needs root.

Cases: `mapped`, the founder's router opens ports; `joiner`, a joiner's router does, and the founder
has a public address; `old`, the same with a router that knows only NAT-PMP and PCP; `provider`, the
joiner's provider translates addresses once more; `household`, two joiners behind one router that
opens ports; `closed`, no router opens ports, the founder has a public address; `ipv6`, no peer has
an IPv4 address, and all listen on `[::]`; `moved`, as `joiner`, with a second joiner whose router
opens no ports: then the first joiner's router restarts with another address.

again s: from that restart to the next round with work of all. new address s: from that restart
until the first joiner publishes the new address and other peers can dial it.

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
RENEWAL_S = 400.0
"""Longest wait for the renewal of a port, which is due every 300 s."""
COLUMNS = {
    "case": "", "together s": ".1f", "rounds": "", "reached": "", "opened": "", "left open": "",
    "again s": "", "new address s": "",
}  # fmt: skip
CASES = ["mapped", "joiner", "old", "provider", "household", "closed", "ipv6", "moved"]
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
    if case == "ipv6":
        return [Place(net.host_without_ipv4()) for _ in range(2)]
    founder = net.host()
    if case == "moved":
        [mapped], [closed] = net.home(opens=True), net.home()
        return [Place(founder), Place(mapped, MAPPED), Place(closed)]
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
        peer.configure(place.network, "[::]" if case == "ipv6" else "0.0.0.0")
    swarm.host = "[::]" if case == "ipv6" else "0.0.0.0"
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
    moved = after_move(net, swarm, places) if case == "moved" else ("-", "-")
    for peer in swarm.peers:
        peer.ask("leave", 5.0)
    for peer in swarm.peers:
        peer.wait()
    left = sum(len(net.ports(host)) for host in routers.values())
    told = ", ".join(f"{name} {answer}" for name, answer in sorted(reached.items()))
    rounds = min(len(peer.rounds) for peer in swarm.peers)
    figures = case, together_s, rounds, told, opened, left, *moved
    return dict(zip(COLUMNS, figures, strict=True))


def after_move(net: Internet, swarm: Swarm, places: list[Place]) -> tuple[str, str]:
    """Restart the first joiner's router with another address, and return both times after it."""
    joiner, before = swarm.joiners[0], [len(peer.rounds) for peer in swarm.peers]
    home, began = net.move(places[1].host), time.monotonic()

    def all_train_again() -> bool:
        pairs = zip(swarm.peers, before, strict=True)
        return all(has_part(peer, count + 2) for peer, count in pairs)

    def is_dialled() -> bool:
        info = joiner.info()
        first = info.get("data_addresses", [""])[0]
        return first.startswith(f"{home.public}:") and info.get("reachable") == "yes"

    swarm.until(all_train_again, "a round of all after the restart of a router", RENEWAL_S)
    again_s = time.monotonic() - began
    swarm.until(is_dialled, "a dialled port at the new address", RENEWAL_S)
    return f"{again_s:.1f}", f"{time.monotonic() - began:.1f}"


def all_train(swarm: Swarm) -> bool:
    """Return True if each peer has had a part in some round."""
    return all(peer.lives and has_part(peer) for peer in swarm.peers)


def has_part(peer: Peer, since: int = 0) -> bool:
    """Return True if some round counted work of this peer and of another one.

    Args:
        peer: The peer.
        since: Number of the peer's first rounds that do not count.
    """
    members = [event.get("members", ()) for event in peer.rounds[since:]]
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
