"""Says on the terminal what happens in the swarm and to this peer while nobody types."""

from collections.abc import Collection, Mapping

from atom.base.clock import Clock
from atom.daemon.console import Console
from atom.daemon.peer.news import Arrival, News, Seen
from atom.swarm.chain.commit import Value
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.lease_book import GAP_SECONDS
from atom.training.round.events import View


class Herald:
    """`tell` is called again and again, on one thread; `hear` on any."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock = console, clock
        self._arrival = Arrival()
        self._news: News | None = None
        self._heard_at = float("-inf")
        self._left: frozenset[str] = frozenset()

    def hear(self, leases: Mapping[str, Lease]) -> None:
        """A reading of the directory: who says goodbye is in no view any more."""
        left = [peer for peer, lease in leases.items() if lease.state is PeerState.LEFT]
        self._left, self._heard_at = frozenset(left), self._clock.now()

    def arrive(self, me: str, ours: int, ahead: Collection[int]) -> None:
        """For each look around until nobody is ahead. `ours`: our round; `ahead`: that of each who
        is."""
        if line := self._arrival.line(me, ours, max(ahead, default=None)):
            self._console.note(line)

    def tell(
        self, me: str, view: View, reason: str, last: Value | None, missing: Collection[str] = ()
    ) -> None:
        """`reason`: why we stand still, if we do; `last`: what was committed last, if we
        were there; `missing`: voters without whom nothing is decided."""
        now = self._clock.now()
        self._news = self._news or News(me, now)
        hears = now - self._heard_at <= GAP_SECONDS  # else everybody seems to be gone
        others = view.fresh.keys() if hears else None
        for line in self._news.lines(Seen(reason, last, others, self._left, missing), now):
            self._console.note(line)
