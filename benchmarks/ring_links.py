"""Networks for ring members: loopback, or a network namespace each on links of a given rate.

Shaped links are veth pairs on a bridge, each end limited by a token bucket (`tc tbf`), so a member
sends and receives at that rate, and not faster. That takes root, `ip` and `tc`, and Linux.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from long_way import LongWays

_CLONE_NEWNET = 0x40000000
_NETWORK, _BRIDGE = "10.213.77", "bridge"
WIRE_SHARE = 1448 / 1514
"""Payload of a full TCP packet on Ethernet, of what it occupies: no sum goes faster than this."""


@dataclass(frozen=True)
class Seat:
    """Where one member sits."""

    host: str
    interface: str
    namespace: str | None

    def take(self) -> None:
        """Moves the calling process there, for good. Before it opens any socket."""
        if self.namespace is None:
            return
        handle = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")
        os.close(handle)

    def sent_bytes(self) -> int:
        """That left it so far, headers included; of the whole machine where it has no namespace."""
        lines = Path("/proc/self/net/dev").read_text().splitlines()
        own = next(line for line in lines if line.strip().startswith(f"{self.interface}:"))
        return int(own.partition(":")[2].split()[8])


def loopback(members: int) -> list[Seat]:
    return [Seat("127.0.0.1", "lo", None)] * members


@contextlib.contextmanager
def shaped(
    megabits_per_s: Sequence[float], queue_ms: float = 50.0, delay_s: float = 0.0
) -> Iterator[list[Seat]]:
    """A seat on a link of each of these rates. `queue_ms`: how much a link's queue holds; what
    comes on top is dropped. From one to another is a way of `delay_s`, half of it on each link.

    Raises: subprocess.CalledProcessError, OSError.
    """
    mark = os.getpid() % 10_000
    hub = f"atom-ring-{mark}-hub"
    seats = [
        Seat(f"{_NETWORK}.{rank + 1}", f"atomv{mark}", f"atom-ring-{mark}-{rank}")
        for rank in range(len(megabits_per_s))
    ]
    ways = LongWays(delay_s / 2)
    try:
        _run(f"ip netns add {hub}")  # where no firewall of the host's looks at what passes a bridge
        _run(f"ip -n {hub} link add {_BRIDGE} type bridge")
        _run(f"ip -n {hub} link set {_BRIDGE} up")
        for rank, seat in enumerate(seats):
            outer = f"to{mark}{rank}"
            _lay(seat, hub, outer, ways if delay_s else None)
            _plug(seat, hub, outer, megabits_per_s[rank], queue_ms)
        ways.start()
        yield seats
    finally:
        ways.close()
        for namespace in (hub, *(seat.namespace for seat in seats)):
            _run(f"ip netns delete {namespace}", check=False)


def _lay(seat: Seat, hub: str, outer: str, ways: LongWays | None) -> None:
    """The namespace, and a line from it to the hub."""
    _run(f"ip netns add {seat.namespace}")
    if ways is None:
        peer = f"peer name {seat.interface} netns {seat.namespace}"
        _run(f"ip -n {hub} link add {outer} type veth {peer}")
        return
    ways.lay(seat.interface, outer)
    _run(f"ip link set {seat.interface} netns {seat.namespace}")
    _run(f"ip link set {outer} netns {hub}")


def _plug(seat: Seat, hub: str, outer: str, megabits_per_s: float, queue_ms: float) -> None:
    _run(f"ip -n {hub} link set {outer} master {_BRIDGE} up")
    _run(f"ip -n {seat.namespace} address add {seat.host}/24 dev {seat.interface}")
    _run(f"ip -n {seat.namespace} link set {seat.interface} up")
    _run(f"ip -n {seat.namespace} link set lo up")
    burst_bytes = max(32_768, int(megabits_per_s * 1e6 / 8 * 0.002))  # two milliseconds' worth
    limit = f"rate {megabits_per_s}mbit burst {burst_bytes} latency {queue_ms}ms"
    for namespace, device in ((hub, outer), (seat.namespace, seat.interface)):
        _run(f"tc -n {namespace} qdisc add dev {device} root tbf {limit}")
        # large segments would pass the buckets as one packet
        offloads = f"ethtool -K {device} tso off gso off gro off"
        _run(f"ip netns exec {namespace} {offloads}", check=False)


def _run(command: str, check: bool = True) -> None:
    with contextlib.suppress(FileNotFoundError) if not check else contextlib.nullcontext():
        subprocess.run(
            command.split(), check=check, capture_output=not check, timeout=20, text=True
        )
