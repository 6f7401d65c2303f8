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

_CLONE_NEWNET = 0x40000000
_NETWORK = "10.213.77"
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


def loopback(members: int) -> list[Seat]:
    return [Seat("127.0.0.1", "lo", None)] * members


@contextlib.contextmanager
def shaped(megabits_per_s: Sequence[float], queue_ms: float = 50.0) -> Iterator[list[Seat]]:
    """A seat on a link of each of these rates. `queue_ms`: how much a link's queue holds; what
    comes on top is dropped. Raises: subprocess.CalledProcessError."""
    mark = os.getpid() % 10_000
    bridge = f"atomb{mark}"
    seats = [
        Seat(f"{_NETWORK}.{rank + 1}", f"atomv{mark}", f"atom-ring-{mark}-{rank}")
        for rank in range(len(megabits_per_s))
    ]
    try:
        _run(f"ip link add {bridge} type bridge")
        _run(f"ip link set {bridge} up")
        for rank, seat in enumerate(seats):
            _plug(seat, f"atomh{mark}{rank}", bridge, megabits_per_s[rank], queue_ms)
        yield seats
    finally:
        for seat in seats:
            _run(f"ip netns delete {seat.namespace}", check=False)
        _run(f"ip link delete {bridge}", check=False)


def _plug(seat: Seat, outer: str, bridge: str, megabits_per_s: float, queue_ms: float) -> None:
    inside = f"ip netns exec {seat.namespace}"
    _run(f"ip netns add {seat.namespace}")
    _run(f"ip link add {outer} type veth peer name {seat.interface} netns {seat.namespace}")
    _run(f"ip link set {outer} master {bridge} up")
    _run(f"{inside} ip address add {seat.host}/24 dev {seat.interface}")
    _run(f"{inside} ip link set {seat.interface} up")
    _run(f"{inside} ip link set lo up")
    burst_bytes = max(32_768, int(megabits_per_s * 1e6 / 8 * 0.002))  # two milliseconds' worth
    limit = f"rate {megabits_per_s}mbit burst {burst_bytes} latency {queue_ms}ms"
    _run(f"tc qdisc add dev {outer} root tbf {limit}")
    _run(f"{inside} tc qdisc add dev {seat.interface} root tbf {limit}")
    for device in (f"dev {outer}", None):  # large segments would pass the buckets as one packet
        command = f"ethtool -K {outer if device else seat.interface} tso off gso off gro off"
        _run(command if device else f"{inside} {command}", check=False)


def _run(command: str, check: bool = True) -> None:
    with contextlib.suppress(FileNotFoundError) if not check else contextlib.nullcontext():
        subprocess.run(
            command.split(), check=check, capture_output=not check, timeout=20, text=True
        )
