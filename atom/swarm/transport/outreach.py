"""How a peer sees to it that others reach it: it asks some to dial it. If they cannot, it keeps
lines open to peers that can be dialled. Also if only one of them cannot: two peers that a third
reaches and that do not reach each other meet there. The decisions are in `reachability`; here is
the thread."""

import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Protocol

from atom.base.clock import Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.swarm.records.lease import Lease, PeerState, Reached
from atom.swarm.records.reachability import (
    SETTLE_S,
    Answers,
    lines_to,
    next_witness,
)
from atom.swarm.transport.contacts import MAX_RELAYS, Contact

_TURN_S = 0.5
_FORGET_S = 60.0
"""A line stays this long after the last lease of the peer at its end."""


def contact_of(lease: Lease) -> Contact:
    """How a peer says that it can be reached."""
    return Contact(lease.addresses, lease.reached is Reached.NO, lease.lines, lease.incarnation)


class Reaching(Protocol):
    """The transport, as far as this goes."""

    @property
    def peer_id(self) -> str: ...
    @property
    def relays(self) -> bool: ...
    def set_contact(self, peer_id: str, contact: Contact) -> None: ...
    def probe(self, peer_id: str) -> Reached: ...
    def keep_lines(self, peer_ids: frozenset[str]) -> None: ...
    def lines(self) -> frozenset[str]: ...


class Outreach:
    """`know` and the readings may come from any thread."""

    def __init__(self, transport: Reaching, wish: Reached, clock: Clock, events: EventSink) -> None:
        """`wish`: what the peer file says; UNKNOWN: find out."""
        self._transport = transport
        self._wish = wish
        self._clock = clock
        self._events = events
        self._on_change: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._others: dict[str, tuple[Lease, float]] = {}
        self._answers = Answers()
        self._asked_at: dict[str, float] = {}
        self._apart: set[str] = set()
        """Who could not reach us when it was asked last, or could not even be asked."""
        self._ask_at = float("-inf")
        self._ask_soon_at = float("inf")
        """From then on it looks as if others did not reach us."""
        self._told: tuple[object, ...] = ()
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

    def know(self, leases: Mapping[str, Lease], in_doubt: bool = False) -> None:
        """A reading of the directory. `in_doubt`: it looks as if others did not reach us. So it
        does if we stay alone at our head, with others in sight: perhaps they cannot fetch it."""
        now = self._clock.now()
        with self._changed:
            for peer_id, lease in leases.items():
                if peer_id == self._transport.peer_id:
                    continue
                self._others[peer_id] = (lease, now)
                self._transport.set_contact(peer_id, contact_of(lease))
            own = leases.get(self._transport.peer_id)
            others = leases.keys() - {self._transport.peer_id}
            alone = own is not None and others and all(leases[p].head != own.head for p in others)
            if not in_doubt and not alone:
                self._ask_soon_at = float("inf")
            else:  # to a peer that is alone, others may be on their way
                soon_at = now if in_doubt else now + SETTLE_S
                self._ask_soon_at = min(self._ask_soon_at, soon_at)
            for peer_id, (lease, seen) in list(self._others.items()):
                if lease.state is PeerState.LEFT or now - seen > _FORGET_S:
                    del self._others[peer_id]
            self._changed.notify_all()

    @property
    def reached(self) -> Reached:
        """Whether others can dial us, as far as we know."""
        return self._wish if self._wish is not Reached.UNKNOWN else self._answers.verdict()

    @property
    def relays(self) -> bool:
        """Whether we join others that cannot be dialled: only if we can be dialled ourselves."""
        return self._transport.relays and self.reached is Reached.YES

    def lines(self) -> tuple[str, ...]:
        """Relaying peers that can call us."""
        up = self._transport.lines()
        with self._changed:
            relaying = [p for p in sorted(up) if p in self._others and self._others[p][0].relays]
        return tuple(relaying[:MAX_RELAYS])

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(_TURN_S)
                if self._closing:
                    return
                others = {peer: lease for peer, (lease, _) in self._others.items()}
            try:
                self.turn(others)
            except Exception:  # noqa: BLE001 - supervisor: without lines nobody could reach us
                self._events.emit("thread-failed", traceback=traceback.format_exc(limit=8))

    def turn(self, others: Mapping[str, Lease]) -> None:
        """One round of decisions and deeds; may take seconds. If `close` overtakes it, it brings no
        news: its listener may be closed, too."""
        if self._wish is Reached.UNKNOWN:
            self._ask(others)
        self._apart &= others.keys()
        needed = self.reached is Reached.NO or bool(self._apart)
        reached = {peer: lease.reached for peer, lease in others.items() if lease.addresses}
        self._transport.keep_lines(
            lines_to(self._transport.peer_id, reached) if needed else frozenset()
        )
        news = (self.reached, self.relays, self.lines())
        if news != self._told and not self._closing:
            self._told = news
            self._on_change()

    def _due(self) -> float:
        """When to ask next: at intervals, which are short while others seem not to reach us."""
        if not self._asked_at:
            return self._ask_at
        again = max(self._asked_at.values()) + SETTLE_S
        return min(self._ask_at, max(self._ask_soon_at, again))

    def _ask(self, others: Mapping[str, Lease]) -> None:
        now = self._clock.now()
        witness = next_witness(others, self._asked_at)
        if witness is None or now < self._due():
            return
        before = self._answers.verdict()
        self._asked_at[witness] = now
        self._apart.add(witness)
        try:
            answer = self._transport.probe(witness)
        except (OSError, PeerRefused):  # that one is no witness
            answer = Reached.UNKNOWN
        if answer is Reached.YES:
            self._apart.discard(witness)
        self._answers = self._answers.with_answer(witness, answer)
        self._ask_at = self._clock.now() + self._answers.pause_s(others)
        verdict = self._answers.verdict()
        if verdict is not before:
            self._events.emit(
                "reachability", reachable=verdict.value, asked=len(self._answers.given)
            )
