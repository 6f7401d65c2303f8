"""Reachability of this peer: it asks other peers whether they can dial it, and if they cannot, it
keeps lines open to peers that can be dialled.

A peer cannot find this out alone. One answer is not enough, so the latest answers of a few
witnesses are kept, and if half of them are no, the verdict is no. A witness in our own network
proves nothing to peers elsewhere: while there are such peers, its answer does not count. A wrong no
only costs connections to peers that could have dialled us; with a wrong yes an exchange fails.

A peer that cannot be dialled also tries to punch a connection to another such peer, until one
works. So it knows whether it is steady before the first exchange.
"""

import contextlib
import math
from collections.abc import Container, Iterable, Mapping

from blake3 import blake3

from atom.base.clock import Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.swarm.dial_rules import AddressClass, class_of
from atom.swarm.records.lease import Lease, PeerState, Reached
from atom.swarm.transport.limits import KnownPeers
from atom.swarm.transport.transport import Transport

WITNESSES = 3
SETTLE_S = 2.0
"""Pause between questions until there are enough answers."""
AGAIN_S = 20.0
MAX_LINES = 64


class Outreach:
    """Keeper of this peer's reachability. `know` and `reached` may be called from any thread."""

    def __init__(
        self, transport: Transport, wish: Reached, clock: Clock, events: EventSink
    ) -> None:
        """Create the tracker.

        Args:
            transport: Transport of this peer.
            wish: Answer that the peer file fixes; UNKNOWN: ask other peers.
            clock: Clock for the pauses between questions.
            events: Receives changes of the verdict.
        """
        self._transport = transport
        self._wish = wish
        self._clock = clock
        self._events = events
        self._answers: dict[str, Reached] = {}
        """Answers by witness, the latest answer last."""
        self._asked = self._tried = 0
        """Number of questions, and of attempts to punch."""
        self._ask_at = -math.inf
        """Time of the next question; infinite while a question is under way."""
        self._heard_at = clock.now()
        """Latest time at which a peer answered, or no peer was there to ask."""

    def know(self, leases: Mapping[str, Lease]) -> None:
        """Take a reading of the directory: update addresses and lines.

        If it is time to ask other peers whether they can dial us, a separate thread asks.

        Args:
            leases: Leases of all peers, by peer id.
        """
        me, now = self._transport.peer_id, self._clock.now()
        others = {
            peer: lease
            for peer, lease in leases.items()
            if peer != me and lease.state is not PeerState.LEFT
        }
        for peer_id, lease in others.items():
            self._transport.set_addresses(peer_id, lease.addresses, lease.reached is Reached.NO)
        self._transport.set_addresses(me, (), self.reached is Reached.NO)
        if others:  # an empty reading is no reason to close lines
            known, is_undialled = self._transport.known, self.reached is Reached.NO
            self._transport.keep_lines(lines_to(me, others, known) if is_undialled else frozenset())
        if self._wish is not Reached.UNKNOWN or not others:
            self._heard_at = now
        if others and self._wish is not Reached.YES and now >= self._ask_at:
            self._ask_at = math.inf
            try:
                self._transport.threads.start("atom-outreach", lambda: self._look(others))
            except OSError:  # the next reading tries again
                self._ask_at = now

    @property
    def reached(self) -> Reached:
        """Answer to the question whether other peers can dial us, as far as we know."""
        return self._wish if self._wish is not Reached.UNKNOWN else verdict(self._answers.values())

    @property
    def silent_s(self) -> float:
        """Seconds for which other peers are known, but none of them could be asked anything."""
        return self._clock.now() - self._heard_at

    def _look(self, others: Mapping[str, Lease]) -> None:
        """Ask one witness; then try a punched connection, if none has worked yet."""
        if self._wish is Reached.UNKNOWN:
            self._ask(others)
        else:
            self._ask_at = self._clock.now() + AGAIN_S
        transport = self._transport
        hidden = sorted(others.keys() - _dialable(others))
        if hidden and self.reached is Reached.NO and not transport.is_steady:
            hidden = [peer for peer in hidden if peer in transport.known] or hidden
            transport.try_to_punch(hidden[self._tried % len(hidden)])
            self._tried += 1

    def _ask(self, others: Mapping[str, Lease]) -> None:
        before, witness = self.reached, witness_of(others, self._asked, self._transport.known)
        self._asked += 1
        answers = {peer: said for peer, said in self._answers.items() if peer != witness}
        try:
            with contextlib.suppress(OSError, PeerRefused):  # such a peer is no witness
                answer = self._transport.probe(witness, any(map(is_outside, others.values())))
                self._heard_at = self._clock.now()
                if answer is not Reached.UNKNOWN:
                    answers[witness] = answer
        finally:
            self._answers = dict([*answers.items()][-WITNESSES:])
            enough = len(self._answers) >= min(WITNESSES, len(others))
            # At first, other peers may still dial the address that we had before a restart.
            doubtful = self._asked < 2 * WITNESSES and self.reached is Reached.NO
            rests = enough and not doubtful
            self._ask_at = self._clock.now() + (AGAIN_S if rests else SETTLE_S)
        if self.reached is not before:
            self._events.emit(
                "reachability", reachable=self.reached.value, asked=len(self._answers)
            )


def is_outside(lease: Lease) -> bool:
    """Return True if a peer publishes a public address."""
    hosts = (address.rpartition(":")[0].strip("[]") for address in lease.addresses)
    return AddressClass.PUBLIC in map(class_of, hosts)


def verdict(answers: Iterable[Reached]) -> Reached:
    """Return YES if more than half of the witnesses could dial us, else NO.

    Without answers, return UNKNOWN.
    """
    given = list(answers)
    if not given:
        return Reached.UNKNOWN
    return Reached.YES if 2 * given.count(Reached.YES) > len(given) else Reached.NO


def witness_of(others: Mapping[str, Lease], asked: int, known: Container[str]) -> str:
    """Return the peer to ask next: each in turn.

    Peers that can be dialled are preferred; if there are none, others are asked over their lines.
    Among these, strangers are asked only if there is no known peer.

    Args:
        others: Leases of the other peers; not empty.
        asked: Number of questions so far.
        known: Peers that the run knows.
    """
    able = sorted(_dialable(others) or others)
    able = [peer for peer in able if peer in known] or able
    return able[asked % len(able)]


def lines_to(me: str, others: Mapping[str, Lease], known: KnownPeers) -> frozenset[str]:
    """Return the peers to which a peer that cannot be dialled keeps lines.

    These are all peers that can be dialled. If they are too many, voters come first, because they
    call for rounds, then known peers, then an arbitrary choice that stays the same.
    """

    def order(peer: str) -> tuple[bool, bool, bytes]:
        return peer not in known.voters, peer not in known, blake3(f"{me}{peer}".encode()).digest()

    able = [peer for peer in _dialable(others) if others[peer].addresses]
    return frozenset(sorted(able, key=order)[:MAX_LINES])


def _dialable(others: Mapping[str, Lease]) -> list[str]:
    """Return the peers that can be dialled, according to their own leases."""
    return [peer for peer, lease in others.items() if lease.reached is not Reached.NO]
