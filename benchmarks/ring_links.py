"""Networks for ring members: loopback, or a network namespace each on links of a given rate.

Shaped links are veth pairs on a bridge, each end limited by a token bucket (`tc tbf`), so a member
sends and receives at that rate, and not faster. That takes root, `ip` and `tc`, and Linux.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from home_networks import homes

_CLONE_NEWNET = 0x40000000
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
    with homes([False] * len(megabits_per_s), delay_s) as places:
        for home, rate in zip(places, megabits_per_s, strict=True):
            burst_bytes = max(32_768, int(rate * 1e6 / 8 * 0.002))  # two milliseconds' worth
            home.slow_down(f"{rate}mbit", burst_bytes, queue_ms)
        yield [Seat(home.host, "eth0", home.namespace) for home in places]
