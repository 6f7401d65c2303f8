"""Seats of measured processes: loopback, or a network namespace each on a link of a given rate.

Shaped links are veth pairs on a bridge, each end limited by a token bucket (`tc tbf`), so a member
sends and receives at that rate, and not faster. That takes root, `ip` and `tc`, and Linux.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.networks import homes

_CLONE_NEWNET = 0x40000000
WIRE_SHARE = 1448 / 1514
"""Share of payload in a full TCP packet on Ethernet: an upper bound of every exchange."""


@dataclass(frozen=True)
class Seat:
    """Network of one process."""

    host: str
    interface: str
    namespace: str | None

    def take(self) -> None:
        """Move the calling process into the namespace, before it opens any socket."""
        if self.namespace is None:
            return
        handle = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")
        os.close(handle)

    def sent_bytes(self) -> int:
        """Return bytes sent so far, headers included; without a namespace, of the whole machine."""
        lines = Path("/proc/self/net/dev").read_text().splitlines()
        own = next(line for line in lines if line.strip().startswith(f"{self.interface}:"))
        return int(own.partition(":")[2].split()[8])


def loopback(members: int) -> list[Seat]:
    return [Seat("127.0.0.1", "lo", None)] * members


@contextlib.contextmanager
def shaped(
    megabits_per_s: Sequence[float], queue_ms: float = 50.0, delay_s: float = 0.0
) -> Iterator[list[Seat]]:
    """Yield a seat on a link of each of these rates.

    Args:
        megabits_per_s: rate of each link, in both directions.
        queue_ms: time that a full queue takes; further packets are dropped.
        delay_s: delay from one seat to another, half of it on each link.

    Raises:
        subprocess.CalledProcessError, OSError: no root, `ip` or `tc`.
    """
    with homes([False] * len(megabits_per_s), delay_s) as places:
        for home, rate in zip(places, megabits_per_s, strict=True):
            burst_bytes = max(32_768, int(rate * 1e6 / 8 * 0.002))  # two milliseconds' worth
            home.slow_down(f"{rate}mbit", burst_bytes, queue_ms)
        yield [Seat(home.host, "eth0", home.namespace) for home in places]
