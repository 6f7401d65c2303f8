"""How other peers can be reached: what their leases say, and which ways worked."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from atom.config.address import parse_host_port
from atom.swarm.records.lease import MAX_ADDRESSES

MAX_RELAYS = 4
MOST_KNOWN = 8192
"""Peers; the one heard of longest ago is forgotten first."""
FAILED_S = 60.0
"""For so long, a way that failed is tried after all others."""


class Unreachable(ConnectionError):
    """No known way led to the peer. `refused`: on every one, its host said that nobody listens."""

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


class WayKind(Enum):
    DIALLED = "dialled"
    CALLED = "called"
    RELAYED = "relayed"


class Way(NamedTuple):
    """One way to a peer."""

    kind: WayKind
    name: str = ""
    """The address, or the relay's peer id."""


@dataclass
class _Entry:
    contact: Contact = Contact()
    good: Way | None = None
    """The address that worked last."""
    last: Way | None = None
    """The way of the last connection."""
    failed_at: dict[Way, float] = field(default_factory=dict)


def parse_address(text: str) -> tuple[str, int]:
    """ "host:port" or "[v6]:port" that can be dialled. Raises: ValueError."""
    host, port = parse_host_port(text)
    if not port:
        raise ValueError("port 0 cannot be dialled")
    return host, port


class ContactBook:
    """Contacts by peer id. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def set(self, peer_id: str, contact: Contact) -> None:
        """Replaces what was known. Malformed addresses and those past the eighth are left out."""
        usable = list[str]()
        for text in contact.addresses[:MAX_ADDRESSES]:
            with contextlib.suppress(ValueError):
                parse_address(text)
                usable.append(text)
        relays = contact.relays[:MAX_RELAYS]
        with self._lock:
            entry = self._entries.pop(peer_id, _Entry())
            entry.contact = replace(contact, addresses=tuple(usable), relays=relays)
            named = {*usable, *relays, ""}
            entry.failed_at = {way: at for way, at in entry.failed_at.items() if way.name in named}
            self._entries[peer_id] = entry
            while len(self._entries) > MOST_KNOWN:
                del self._entries[next(iter(self._entries))]

    def knows(self, peer_id: str) -> bool:
        with self._lock:
            return peer_id in self._entries

    def may_be_of(self, peer_id: str, incarnation: bytes) -> bool:
        """Whether addresses are known that may be this process's: others listened elsewhere."""
        with self._lock:
            contact = self._entries.get(peer_id, _Entry()).contact
            return bool(contact.addresses) and contact.incarnation in (b"", incarnation)

    def ways(self, peer_id: str) -> list[Way]:
        """All ways, best first: addresses, a call, relays; addresses last if the peer says that
        nobody can dial it and none of them has worked. Ways that failed within the last minute
        come after all others, the latest failure at the end."""
        with self._lock:
            entry = self._entries.get(peer_id, _Entry())
            contact = entry.contact
            direct = [Way(WayKind.DIALLED, address) for address in contact.addresses]
            direct.sort(key=lambda way: way != entry.good)
            indirect = [Way(WayKind.CALLED)]
            indirect += [Way(WayKind.RELAYED, relay) for relay in contact.relays]
            last = contact.dials_out and entry.good is None
            since = self._now() - FAILED_S
            failed_at = dict(entry.failed_at)
        ways = [*indirect, *direct] if last else [*direct, *indirect]
        return sorted(ways, key=lambda way: max(failed_at.get(way, since), since))

    def worked(self, peer_id: str, way: Way) -> None:
        """There is a connection to that peer now."""
        with self._lock:
            if entry := self._entries.get(peer_id):
                entry.last = way
                entry.failed_at.pop(way, None)
                if way.kind is WayKind.DIALLED:
                    entry.good = way

    def failed(self, peer_id: str, way: Way) -> None:
        """That way led nowhere."""
        with self._lock:
            if entry := self._entries.get(peer_id):
                self._fail(entry, way)

    def doubt(self, peer_id: str) -> None:
        """The peer did not answer. If the last connection went through another peer, it may end
        there: that way failed."""
        with self._lock:
            entry = self._entries.get(peer_id)
            if entry and entry.last and entry.last.kind is not WayKind.DIALLED:
                self._fail(entry, entry.last)

    def _fail(self, entry: _Entry, way: Way) -> None:
        entry.failed_at[way] = self._now()
        if entry.good == way:
            entry.good = None
