"""Time, network and directory between simulated peers, none of them trustworthy."""

import heapq
import itertools
import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

from atom.swarm.chain.messages import Message
from atom.swarm.records.lease import LEASE_SECONDS, Lease


class Agenda:
    """Virtual time: the next due event happens next, and nothing else takes any time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), act))

    def run_until(self, time_s: float) -> None:
        while self._due and self._due[0][0] <= time_s:
            self.now, _, act = heapq.heappop(self._due)
            act()
        self.now = time_s


@dataclass(frozen=True)
class Weather:
    """How badly messages and leases travel. Delays are (shortest, longest) in seconds."""

    loss: float = 0.0
    duplicates: float = 0.0
    delay: tuple[float, float] = (0.002, 0.05)
    slow: float = 0.0
    """Share of messages that take up to `slow_delay` instead, overtaken by later ones."""
    slow_delay: float = 6.0
    lease_loss: float = 0.0
    lease_delay: tuple[float, float] = (0.05, 0.6)
    refusals: float = 0.8
    """Share of messages to a dead process whose sender learns that no process listens."""


CALM = Weather()


def lose_nothing(source: str, target: str, message: Message) -> bool:
    return False


class Network:
    """Carries messages between peer ids."""

    def __init__(self, agenda: Agenda, dice: random.Random) -> None:
        self._agenda = agenda
        self._dice = dice
        self.weather = CALM
        self.blocked: set[tuple[str, str]] = set()
        """Pairs (from, to) between which no message passes, one way each."""
        self.narrow: set[tuple[str, str]] = set()
        """Pairs (from, to) without exchanges and transfers; messages pass."""
        self.drop: Callable[[str, str, Message], bool] = lose_nothing
        """Script of a test: returns True to lose a message."""

    def passes(self, source: str, target: str) -> bool:
        return (source, target) not in self.blocked

    def carries(self, here: str, there: str) -> bool:
        """Return True if an exchange or a transfer between two peers comes about."""
        ways = ((here, there), (there, here))
        return not any(way in self.blocked or way in self.narrow for way in ways)

    def send(
        self,
        way: tuple[str, str],
        message: Message,
        deliver: Callable[[], bool],
        refused: Callable[[], None],
    ) -> None:
        """Carry a message from one peer to another.

        Args:
            way: Peer ids of its sender and its recipient.
            message: The message.
            deliver: Delivers it; returns True if the recipient was there.
            refused: May be called if the recipient was not.
        """

        def arrive() -> None:
            absent = self.passes(*way) and not deliver()
            if absent and self._dice.random() < self.weather.refusals:
                self._agenda.after(self._delay(), refused)

        if self.drop(*way, message):
            return
        for _ in range(1 + (self._dice.random() < self.weather.duplicates)):
            if self._dice.random() >= self.weather.loss:
                self._agenda.after(self._delay(), arrive)

    def _delay(self) -> float:
        if self._dice.random() < self.weather.slow:
            return self._dice.uniform(0.0, self.weather.slow_delay)
        return self._dice.uniform(*self.weather.delay)


class Directory:
    """A DHT: every reader has its own, late and lossy, copy of all leases."""

    def __init__(self, agenda: Agenda, dice: random.Random) -> None:
        self._agenda = agenda
        self._dice = dice
        self.weather = CALM
        self.dark: set[str] = set()
        """Peers that reach no part of the directory."""
        self.hidden: set[tuple[str, str]] = set()
        """(publisher, reader): this reader's part of the directory does not get that lease."""
        self._copies: dict[str, dict[str, tuple[float, Lease]]] = {}
        self._coming: dict[str, list[tuple[float, int, float, Lease]]] = {}
        """Leases under way, by reader: (arrival, serial number, expiry, lease)."""
        self._order = itertools.count()

    def add_reader(self, peer_id: str) -> None:
        self._copies.setdefault(peer_id, {})
        self._coming.setdefault(peer_id, [])

    def publish(self, lease: Lease, now: float) -> None:
        """`now` by the publisher's clock: a lease says itself when it ends."""
        if lease.peer_id in self.dark:
            return
        expires = now + LEASE_SECONDS
        for reader, coming in self._coming.items():
            if (lease.peer_id, reader) in self.hidden or reader == lease.peer_id:
                continue
            if self._dice.random() < self.weather.lease_loss:
                continue
            arrives = self._agenda.now + self._dice.uniform(*self.weather.lease_delay)
            coming.append((arrives, next(self._order), expires, lease))

    def read(self, reader: str, now: float) -> dict[str, Lease] | None:
        """The leases this reader can see, unexpired by its clock; None if it cannot read at all."""
        if reader in self.dark:
            return None
        self._take_in(reader)
        return {p: lease for p, (until, lease) in self._copies[reader].items() if until > now}

    def _take_in(self, reader: str) -> None:
        """Take in leases in the order of arrival: an old one may replace a newer one."""
        copy, coming = self._copies[reader], sorted(self._coming[reader])
        arrived = bisect_right(coming, self._agenda.now, key=itemgetter(0))
        for _, _, expires, lease in coming[:arrived]:
            copy[lease.peer_id] = (expires, lease)
        self._coming[reader] = coming[arrived:]
