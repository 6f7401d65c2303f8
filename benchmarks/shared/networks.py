"""Networks of peers: one namespace each, joined by a bridge in a further namespace.

Some networks drop all connections from outside; some have a slow line. Needs root, `ip` and `tc`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.shared.long_way import LongWays

_NETWORK = "10.214.9"
_SYN_ALONE = "match ip protocol 6 0xff match u8 0x02 0x12 at 33"
"""Match of a TCP packet that opens a connection, in an IP packet without options."""
_UDP = "match ip protocol 17 0xff"
_OPEN = "parent 1: classid 1:1 htb"
"""Class of packets that may enter a shut network, for `tc`."""
_AT_ONCE = "htb rate 10gbit burst 1mb cburst 1mb quantum 1514"
_COUNTED = "10:1"
_BRIDGE = "bridge"


@dataclass(frozen=True)
class Home:
    """Network of one peer."""

    namespace: str
    host: str
    hub: str
    """Namespace of the bridge, out of reach of the host's firewall."""
    outer: str
    """Interface at the bridge's end of the line."""
    is_shut: bool = False

    def slow_down(self, rate: str, burst_bytes: int = 16 * 1024, queue_ms: float = 200.0) -> None:
        """Limit the line in either direction.

        Args:
            rate: in the words of `tc`.
            burst_bytes: bytes that may pass at once.
            queue_ms: time that a full queue takes; further packets are dropped.
        """
        shape = f"root handle 1: tbf rate {rate} burst {burst_bytes} latency {queue_ms}ms"
        tc = f"tc -n {self.hub}"
        _run(f"ip netns exec {self.namespace} tc qdisc replace dev eth0 {shape}")
        if self.is_shut:
            _run(f"{tc} class change dev {self.outer} {_OPEN} rate {rate} quantum 60000")
        else:
            _run(f"{tc} qdisc replace dev {self.outer} {shape}")

    def count(self, port: int, queue_bytes: int) -> None:
        """Count outgoing TCP bytes of `port` and of all others, on a line that was slowed down.

        The two kinds take turns on the line.

        Args:
            port: source or destination.
            queue_bytes: of either kind that may wait.
        """
        tc = f"ip netns exec {self.namespace} tc"
        _run(f"{tc} qdisc add dev eth0 parent 1:1 handle 10: htb default 2")
        for kind in (1, 2):
            _run(f"{tc} class add dev eth0 parent 10: classid 10:{kind} {_AT_ONCE}")
            _run(f"{tc} qdisc add dev eth0 parent 10:{kind} bfifo limit {queue_bytes}")
        for end in ("sport", "dport"):
            what = f"match ip {end} {port} 0xffff flowid {_COUNTED}"
            _run(f"{tc} filter add dev eth0 parent 10: protocol ip prio 1 u32 {what}")

    def counted(self) -> tuple[int, int]:
        """Return bytes (headers included) and packets of the counted port since `count`."""
        show = f"ip netns exec {self.namespace} tc -s -j qdisc show dev eth0"
        found = json.loads(subprocess.run(show.split(), check=True, capture_output=True).stdout)
        (port,) = (each for each in found if each.get("parent") == _COUNTED)
        return port["bytes"], port["packets"]

    def buffer(self, most_bytes: int) -> None:
        """Limit the send buffer of new connections.

        The usual megabytes would hide that a line is slow, as its rate is a small share of a real
        line's.
        """
        command = f"echo 4096 16384 {most_bytes} > /proc/sys/net/ipv4/tcp_wmem"
        _run(f"ip netns exec {self.namespace} sh -c", command)


@contextlib.contextmanager
def homes(shut: Sequence[bool], delay_s: float = 0.0) -> Iterator[list[Home]]:
    """Yield a network for each entry of `shut`; True lets no TCP connection and no UDP in.

    Args:
        shut: one entry per network.
        delay_s: delay from one network to another, half of it on each line.

    Raises:
        subprocess.CalledProcessError, OSError: no root, `ip` or `tc`.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that networks are taken down
    mark = os.getpid() % 10_000
    hub = f"atom-home-{mark}-hub"
    made = [
        Home(f"atom-home-{mark}-{n}", f"{_NETWORK}.{n + 1}", hub, f"atomo{mark}{n}", is_shut)
        for n, is_shut in enumerate(shut)
    ]
    ways = LongWays(delay_s / 2)
    try:
        _run(f"ip netns add {hub}")
        _run(f"ip -n {hub} link add {_BRIDGE} type bridge")
        _run(f"ip -n {hub} link set {_BRIDGE} up")
        for home in made:
            _lay(home, ways if delay_s else None)
            _plug(home)
            if home.is_shut:
                _shut(home)
        ways.start()
        yield made
    finally:
        ways.close()
        for home in made:  # the line first: its namespace ends some time later
            _run(f"ip -n {hub} link delete {home.outer}", check=False)
            _run(f"ip netns delete {home.namespace}", check=False)
        _run(f"ip netns delete {hub}", check=False)


def _lay(home: Home, ways: LongWays | None) -> None:
    """Make the namespace, and a line from its `eth0` to `outer`."""
    _run(f"ip netns add {home.namespace}")
    if ways is None:
        peer = f"peer name eth0 netns {home.namespace}"
        _run(f"ip -n {home.hub} link add {home.outer} type veth {peer}")
        return
    near = f"{home.outer}n"
    ways.lay(near, home.outer)
    _run(f"ip link set {near} netns {home.namespace} name eth0")
    _run(f"ip link set {home.outer} netns {home.hub}")


def _plug(home: Home) -> None:
    _run(f"ip -n {home.hub} link set {home.outer} master {_BRIDGE} up")
    inside = f"ip -n {home.namespace}"
    _run(f"{inside} address add {home.host}/24 dev eth0")
    _run(f"{inside} link set eth0 up")
    _run(f"{inside} link set lo up")
    _run(f"{inside} route add default via {_NETWORK}.254")


def _shut(home: Home) -> None:
    """Drop packets that would enter: their queue has room for one byte."""
    tc = f"tc -n {home.hub}"
    _run(f"{tc} qdisc add dev {home.outer} root handle 1: htb default 1")
    _run(f"{tc} class add dev {home.outer} {_OPEN} rate 1gbit quantum 60000")
    _run(f"{tc} class add dev {home.outer} parent 1: classid 1:3 htb rate 1mbit quantum 2000")
    _run(f"{tc} qdisc add dev {home.outer} parent 1:3 handle 30: bfifo limit 1")
    for priority, what in enumerate((_SYN_ALONE, _UDP), start=1):
        place = f"dev {home.outer} parent 1: protocol ip prio {priority}"
        _run(f"{tc} filter add {place} u32 {what} flowid 1:3")


def _run(command: str, *last: str, check: bool = True) -> None:
    """Run a command; split `command` at blanks, but not `last`."""
    subprocess.run([*command.split(), *last], check=check, capture_output=True)
