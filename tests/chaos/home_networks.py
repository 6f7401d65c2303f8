"""A network for each peer: namespaces, joined by a bridge. Some let nobody in: what asks to enter
is dropped. Some have a slow line. Needs root, `ip` and `tc`."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm_of_processes import Swarm, swarm_in

_NETWORK = "10.214.9"
_SYN_ALONE = "match ip protocol 6 0xff match u8 0x02 0x12 at 33"
"""Flags of TCP, in an IP packet without options: a connection is asked for."""
_UDP = "match ip protocol 17 0xff"


@dataclass(frozen=True)
class Home:
    """A peer's own network."""

    namespace: str
    host: str
    outer: str
    """The bridge's end of its line."""

    def slow_down(self, rate: str) -> None:
        """Its line carries no more than that, in `tc`'s words, in either direction."""
        shape = f"root tbf rate {rate} burst 16kb latency 200ms"
        _run(f"ip netns exec {self.namespace} tc qdisc replace dev eth0 {shape}")
        _run(f"tc qdisc replace dev {self.outer} {shape}")


@contextlib.contextmanager
def swarm_at_home(
    root: Path, run_text: str, names: Sequence[str], shut: Sequence[bool], memory: str | None = None
) -> Iterator[tuple[Swarm, list[Home]]]:
    """Peers in networks of their own, of which these let nobody in; founded, and standing."""
    with _homes(shut) as places, swarm_in(root, run_text, names, memory) as swarm:
        for peer, home in zip(swarm.peers, places, strict=True):
            peer.namespace = home.namespace
            peer.configure(listen=home.host)
        swarm.host = places[0].host
        swarm.found(standing=True)
        yield swarm, places


@contextlib.contextmanager
def _homes(shut: Sequence[bool]) -> Iterator[list[Home]]:
    """Into those that are shut no TCP connection can be opened, and no UDP gets in.

    Raises: subprocess.CalledProcessError.
    """
    mark = os.getpid() % 10_000
    bridge = f"atoms{mark}"
    made = [
        Home(f"atom-home-{mark}-{n}", f"{_NETWORK}.{n + 1}", f"atomo{mark}{n}")
        for n in range(len(shut))
    ]
    try:
        _run(f"ip link add {bridge} type bridge")
        _run(f"ip link set {bridge} up")
        for home, is_shut in zip(made, shut, strict=True):
            _plug(home, bridge)
            if is_shut:
                _shut(home.outer)
        yield made
    finally:
        for home in made:  # first the line: its namespace goes some time after it is told to
            _run(f"ip link delete {home.outer}", check=False)
            _run(f"ip netns delete {home.namespace}", check=False)
        _run(f"ip link delete {bridge}", check=False)


def _plug(home: Home, bridge: str) -> None:
    inside, outer = f"ip netns exec {home.namespace}", home.outer
    _run(f"ip netns add {home.namespace}")
    _run(f"ip link add {outer} type veth peer name eth0 netns {home.namespace}")
    _run(f"ip link set {outer} master {bridge} up")
    _run(f"{inside} ip address add {home.host}/24 dev eth0")
    _run(f"{inside} ip link set eth0 up")
    _run(f"{inside} ip link set lo up")
    _run(f"{inside} ip route add default via {_NETWORK}.254")


def _shut(outer: str) -> None:
    """What is to be dropped goes to a queue that has room for one byte."""
    _run(f"tc qdisc add dev {outer} root handle 1: htb default 1")
    _run(f"tc class add dev {outer} parent 1: classid 1:1 htb rate 1gbit quantum 60000")
    _run(f"tc class add dev {outer} parent 1: classid 1:3 htb rate 1mbit quantum 2000")
    _run(f"tc qdisc add dev {outer} parent 1:3 handle 30: bfifo limit 1")
    for priority, what in enumerate((_SYN_ALONE, _UDP), start=1):
        place = f"dev {outer} parent 1: protocol ip prio {priority}"
        _run(f"tc filter add {place} u32 {what} flowid 1:3")


def _run(command: str, check: bool = True) -> None:
    subprocess.run(command.split(), check=check, capture_output=True)
