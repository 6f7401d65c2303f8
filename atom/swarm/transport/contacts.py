"""What we know about reaching others: where they listen, whether anybody can dial them, and who
could relay. Told by their leases, and by what worked."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from atom.config.address import parse_host_port
from atom.swarm.records.lease import MAX_ADDRESSES

MAX_RELAYS = 4
MOST_KNOWN = 8192
"""Peers; who was heard of longest ago goes first."""
FAILED_S = 60.0
"""For so long, addresses that did not answer are tried after everything else."""


class Unreachable(ConnectionError):
    """No known address answered. `refused`: every one of them said that nobody listens there."""

    def __init__(self, detail: str, refused: bool = False) -> None:
        super().__init__(detail)
        self.refused = refused


@dataclass(frozen=True)
class Contact:
    """How to reach one peer."""

    addresses: tuple[str, ...] = ()
    """ "host:port", best first."""
    dials_out: bool = False
    """It says that nobody can dial it: its addresses are tried last."""
    relays: tuple[str, ...] = ()
    """Peers that it keeps a line to, and that relay for others."""
    incarnation: bytes = b""
    """Of the process that is there; empty: not known."""


def parse_address(text: str) -> tuple[str, int]:
    """ "host:port" or "[v6]:port" that can be dialled. Raises: ValueError."""
    host, port = parse_host_port(text)
    if not port:
        raise ValueError("port 0 cannot be dialled")
    return host, port


class ContactBook:
    """Contacts by peer id. The address that worked last is tried first. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._known: dict[str, Contact] = {}
        self._good: dict[str, str] = {}
        self._failed_at: dict[str, float] = {}
        self._chance_at: dict[str, float] = {}
        """When addresses that had failed were tried first again all the same."""
        self._through: dict[str, str] = {}
        """The relay of the last connection there, if it took one."""
        self._nowhere_at: dict[str, dict[str, float]] = {}
        """When each of its relays led nowhere."""

    def set(self, peer_id: str, contact: Contact) -> bool:
        """Replaces what was known; whether it is another process now, or elsewhere. Malformed
        addresses and those past the eighth are left out."""
        usable = []
        for text in contact.addresses[:MAX_ADDRESSES]:
            with contextlib.suppress(ValueError):
                parse_address(text)
                usable.append(text)
        relays = contact.relays[:MAX_RELAYS]
        with self._lock:
            before = self._known.pop(peer_id, Contact())
            self._known[peer_id] = replace(contact, addresses=tuple(usable), relays=relays)
            if before.addresses != tuple(usable):
                self._failed_at.pop(peer_id, None)
            while len(self._known) > MOST_KNOWN:
                self._forget(next(iter(self._known)))
        here = (tuple(usable), contact.incarnation)
        return here != (before.addresses, before.incarnation)

    def _forget(self, peer_id: str) -> None:
        places = (self._known, self._good, self._through)
        times = (self._failed_at, self._chance_at, self._nowhere_at)
        for about in (*places, *times):
            about.pop(peer_id, None)

    def knows(self, peer_id: str) -> bool:
        with self._lock:
            return peer_id in self._known

    def addresses(self, peer_id: str) -> list[str]:
        with self._lock:
            good = self._good.get(peer_id)
            known = self._known.get(peer_id, Contact()).addresses
            return sorted(known, key=lambda text: text != good)

    def may_be_of(self, peer_id: str, incarnation: bytes) -> bool:
        """Whether addresses are known that may be this process's: others listened elsewhere."""
        with self._lock:
            contact = self._known.get(peer_id, Contact())
            return bool(contact.addresses) and contact.incarnation in (b"", incarnation)

    def relays(self, peer_id: str) -> Sequence[str]:
        """Best first: those that led nowhere come last, the latest of them at the end."""
        with self._lock:
            nowhere_at = self._nowhere_at.get(peer_id, {})
            relays = self._known.get(peer_id, Contact()).relays
            return sorted(relays, key=lambda relay: nowhere_at.get(relay, float("-inf")))

    def came_there(self, peer_id: str, relay: str) -> None:
        """There is a connection to that peer now, through `relay`; empty: without one."""
        with self._lock:
            if peer_id in self._known:
                self._through[peer_id] = relay

    def led_nowhere(self, peer_id: str, relay: str) -> None:
        """This relay, if it is one of that peer's, gave us no word of it."""
        with self._lock:
            named = self._known.get(peer_id, Contact()).relays
            if relay in named:
                before = self._nowhere_at.get(peer_id, {})
                kept = {each: at for each, at in before.items() if each in named}
                self._nowhere_at[peer_id] = {**kept, relay: self._now()}

    def dial_last(self, peer_id: str) -> bool:
        """Whether to try everything else before this peer's addresses."""
        with self._lock:
            contact = self._known.get(peer_id, Contact())
            if contact.dials_out and peer_id not in self._good:
                return True
            return self._now() - self._failed_at.get(peer_id, float("-inf")) < FAILED_S

    def worked(self, peer_id: str, address: str) -> None:
        with self._lock:
            if peer_id in self._known:
                self._good[peer_id] = address
            self._failed_at.pop(peer_id, None)

    def give_another_chance(self, peer_id: str) -> None:
        """The way we came there leads nowhere: other relays may be tried first, and addresses that
        failed. These not again and again: a dial in a hurry gets no further than to them."""
        with self._lock:
            relay = self._through.pop(peer_id, "")
            now = self._now()
            recently = now - self._chance_at.get(peer_id, float("-inf")) < FAILED_S
            if peer_id in self._failed_at and not recently:
                del self._failed_at[peer_id]
                self._chance_at[peer_id] = now
        self.led_nowhere(peer_id, relay)

    def failed(self, peer_id: str) -> None:
        """None of its addresses answered."""
        with self._lock:
            self._good.pop(peer_id, None)
            if peer_id in self._known:
                self._failed_at[peer_id] = self._now()
