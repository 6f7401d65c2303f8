"""How a peer sees to it that others reach it: it asks some whether they can dial it, and if they
cannot, it keeps lines open to peers that can be dialled.

Nobody can know that of itself. One peer's answer is not enough: somebody in the same home reaches
us where nobody else can. So the latest answers of a few are kept, and half of them saying no means
no: that costs a connection to those who could have dialled us, while with a wrong yes an exchange
breaks.
"""

import contextlib
import math
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping

from blake3 import blake3

from atom.base.clock import Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.swarm.records.lease import Lease, PeerState, Reached
from atom.swarm.transport.dialer import Contact
from atom.swarm.transport.transport import Transport

WITNESSES = 3
SETTLE_S = 2.0
"""Between questions until there are enough answers."""
AGAIN_S = 20.0
MAX_LINES = 64
_TURN_S = 0.5


def contact_of(lease: Lease) -> Contact:
    """How a peer says that it can be reached."""
    return Contact(lease.addresses, lease.reached is Reached.NO, lease.incarnation)


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
        self._on_change: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._others: dict[str, Lease] = {}
        self._answers: dict[str, Reached] = {}
        """By witness, the latest answer last."""
        self._asked = 0
        self._ask_at = -math.inf
        self._told = Reached.UNKNOWN
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="atom-outreach", daemon=True)

    def start(self, on_change: Callable[[], None]) -> None:
        """`on_change`: our lease has news."""
        self._on_change = on_change
        self._thread.start()

    def close(self) -> None:
        """Does not wait for a question under way: closing the transport ends it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def know(self, leases: Mapping[str, Lease]) -> None:
        """A reading of the directory."""
        me = self._transport.peer_id
        here = {p: lease for p, lease in leases.items() if lease.state is not PeerState.LEFT}
        for peer_id in here.keys() - {me}:
            self._transport.set_contact(peer_id, contact_of(here[peer_id]))
        with self._changed:
            self._others = {peer: lease for peer, lease in here.items() if peer != me}
            self._changed.notify_all()

    @property
    def reached(self) -> Reached:
        """Whether others can dial us, as far as we know."""
        return self._wish if self._wish is not Reached.UNKNOWN else verdict(self._answers.values())

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(_TURN_S)
                if self._closing:
                    return
                others = self._others
            try:
                self.turn(others)
            except Exception:  # noqa: BLE001 - supervisor: without lines nobody could reach us
                self._events.emit("thread-failed", traceback=traceback.format_exc(limit=8))

    def turn(self, others: Mapping[str, Lease]) -> None:
        """One round of decisions and deeds; may take seconds. If `close` overtakes it, it brings no
        news: its listener may be closed, too."""
        if self._wish is Reached.UNKNOWN and others and self._clock.now() >= self._ask_at:
            self._ask(others)
        hidden, me = self.reached is Reached.NO, self._transport.peer_id
        self._transport.keep_lines(lines_to(me, others) if hidden else frozenset())
        if self.reached is not self._told and not self._closing:
            self._told = self.reached
            self._on_change()

    def _ask(self, others: Mapping[str, Lease]) -> None:
        before, witness = self.reached, witness_of(others, self._asked)
        self._asked += 1
        answer = Reached.UNKNOWN
        with contextlib.suppress(OSError, PeerRefused):  # then that one is no witness
            answer = self._transport.probe(witness)
        answers = {peer: said for peer, said in self._answers.items() if peer != witness}
        if answer is not Reached.UNKNOWN:
            answers[witness] = answer
        self._answers = dict([*answers.items()][-WITNESSES:])
        settled = len(self._answers) >= min(WITNESSES, len(others))
        self._ask_at = self._clock.now() + (AGAIN_S if settled else SETTLE_S)
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


def witness_of(others: Mapping[str, Lease], asked: int) -> str:
    """Whom of these to ask after so many questions: everybody in turn. Peers that cannot be dialled
    are asked, over their lines, if there are no others."""
    able = sorted(_dialable(others) or others)
    return able[asked % len(able)]


def lines_to(me: str, others: Mapping[str, Lease]) -> frozenset[str]:
    """Whom a peer that cannot be dialled keeps lines to: everybody who can, or an arbitrary but
    steady choice of them if they are many."""
    able = [peer for peer in _dialable(others) if others[peer].addresses]
    able.sort(key=lambda peer: blake3(f"{me}{peer}".encode()).digest())
    return frozenset(able[:MAX_LINES])


def _dialable(others: Mapping[str, Lease]) -> list[str]:
    """As far as they know."""
    return [peer for peer, lease in others.items() if lease.reached is not Reached.NO]
