"""How a peer sees to it that others reach it: it asks some whether they can dial it, and if they
cannot, it keeps lines open to peers that can be dialled.

Nobody can know that of itself. One peer's answer is not enough: somebody in the same home reaches
us where nobody else can. So the latest answers of a few are kept, and half of them saying no means
no: that costs a connection to those who could have dialled us, while with a wrong yes an exchange
breaks.
"""

import contextlib
import math
from collections.abc import Container, Iterable, Mapping

from blake3 import blake3

from atom.base.clock import Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.swarm.records.lease import Lease, PeerState, Reached
from atom.swarm.transport.transport import Transport

WITNESSES = 3
SETTLE_S = 2.0
"""Between questions until there are enough answers."""
AGAIN_S = 20.0
MAX_LINES = 64


class Outreach:
    """`know` and `reached` may be called from any thread."""

    def __init__(
        self, transport: Transport, wish: Reached, clock: Clock, events: EventSink
    ) -> None:
        """`wish`: what the peer file says; UNKNOWN: find out."""
        self._transport = transport
        self._wish = wish
        self._clock = clock
        self._events = events
        self._answers: dict[str, Reached] = {}
        """By witness, the latest answer last."""
        self._asked = 0
        self._ask_at = -math.inf
        """Infinite while a question is under way."""

    def know(self, leases: Mapping[str, Lease]) -> None:
        """A reading of the directory: keeps lines as it wants them, and asks, in a thread of its
        own, if a question is due."""
        me, now = self._transport.peer_id, self._clock.now()
        others = {
            peer: lease
            for peer, lease in leases.items()
            if peer != me and lease.state is not PeerState.LEFT
        }
        for peer_id, lease in others.items():
            self._transport.set_addresses(peer_id, lease.addresses, lease.reached is Reached.NO)
        if others:  # a reading that found nobody says nothing about lines
            known, hidden = self._transport.known, self.reached is Reached.NO
            self._transport.keep_lines(lines_to(me, others, known) if hidden else frozenset())
        if self._wish is Reached.UNKNOWN and others and now >= self._ask_at:
            self._ask_at = math.inf
            try:
                self._transport.threads.start("atom-outreach", lambda: self._ask(others))
            except OSError:  # the next reading tries again
                self._ask_at = now

    @property
    def reached(self) -> Reached:
        """Whether others can dial us, as far as we know."""
        return self._wish if self._wish is not Reached.UNKNOWN else verdict(self._answers.values())

    def _ask(self, others: Mapping[str, Lease]) -> None:
        before, witness = self.reached, witness_of(others, self._asked, self._transport.known)
        self._asked += 1
        answers = {peer: said for peer, said in self._answers.items() if peer != witness}
        try:
            with contextlib.suppress(OSError, PeerRefused):  # then that one is no witness
                answer = self._transport.probe(witness)
                if answer is not Reached.UNKNOWN:
                    answers[witness] = answer
        finally:
            self._answers = dict([*answers.items()][-WITNESSES:])
            enough = len(self._answers) >= min(WITNESSES, len(others))
            # At first others may still dial the address of an earlier life of ours.
            doubtful = self._asked < 2 * WITNESSES and self.reached is Reached.NO
            rests = enough and not doubtful
            self._ask_at = self._clock.now() + (AGAIN_S if rests else SETTLE_S)
        if self.reached is not before:
            self._events.emit(
                "reachability", reachable=self.reached.value, asked=len(self._answers)
            )


def verdict(answers: Iterable[Reached]) -> Reached:
    """No, unless more than half of those who tried could dial us."""
    given = list(answers)
    if not given:
        return Reached.UNKNOWN
    return Reached.YES if 2 * given.count(Reached.YES) > len(given) else Reached.NO


def witness_of(others: Mapping[str, Lease], asked: int, known: Container[str]) -> str:
    """Whom of these to ask after so many questions: the `known` ones in turn, strangers only if
    there are none. Peers that cannot be dialled are asked, over their lines, if there are no
    others."""
    able = sorted(_dialable(others) or others)
    able = [peer for peer in able if peer in known] or able
    return able[asked % len(able)]


def lines_to(me: str, others: Mapping[str, Lease], known: Container[str]) -> frozenset[str]:
    """Whom a peer that cannot be dialled keeps lines to: everybody who can, or if they are many the
    `known` ones and an arbitrary but steady choice of the others."""
    able = [peer for peer in _dialable(others) if others[peer].addresses]
    able.sort(key=lambda peer: (peer not in known, blake3(f"{me}{peer}".encode()).digest()))
    return frozenset(able[:MAX_LINES])


def _dialable(others: Mapping[str, Lease]) -> list[str]:
    """As far as they know."""
    return [peer for peer, lease in others.items() if lease.reached is not Reached.NO]
