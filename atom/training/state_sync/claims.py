"""Claims of a better head, proven beside the training: until then a claim costs nothing.

A lease may say anything. A peer leaves its round for a better head only when it has fetched the
chain that leads there and checked every certificate of it.
"""

import queue
import threading
from collections.abc import Sequence

from atom.base.clock import Clock
from atom.base.errors import PeerRefused
from atom.swarm.chain.commit import Head
from atom.swarm.records.lease import claims_better, preferred
from atom.swarm.transport.limits import Backoff
from atom.training.round.events import View
from atom.training.round.faults import FIRST_DOUBT_S, LONGEST_DOUBT_S, in_turn
from atom.training.state_sync.state_sync import StateSync

SETTLED_S = 0.3
"""A claim is looked into once there has been one for so long: the commit may be under way to us."""
AT_ONCE = 2
COST_FACTOR = 10.0
"""A peer that proved nothing is left alone for so many times the time that it took, at least."""


class ClaimCheck:
    """Called by the round's loop alone; asks on threads of its own."""

    def __init__(self, state_sync: StateSync, clock: Clock) -> None:
        self._state_sync = state_sync
        self._clock = clock
        self._doubts = Backoff(FIRST_DOUBT_S, LONGEST_DOUBT_S)
        self._asked: set[str] = set()
        self._outcomes: queue.SimpleQueue[tuple[str, bool, float]] = queue.SimpleQueue()
        """Who was asked, whether it proved its claim, and how many seconds it took."""
        self._claimed_since = float("inf")

    def unproven(self, view: View, head: Head) -> frozenset[str]:
        """Of the peers whose leases claim a better head than `head`, those that have not shown how
        it came about. Does not wait."""
        now = self._clock.now()
        self._learn(now)
        leases = view.fresh.values()
        claims = [e for e in leases if claims_better(e, head) and e.peer_id not in view.aside]
        self._claimed_since = min(self._claimed_since, now) if claims else float("inf")
        unproven = [e for e in claims if not self._state_sync.has_proven(e.peer_id)]
        settled = now >= self._claimed_since + SETTLED_S and len(self._asked) < AT_ONCE
        if len(unproven) == len(claims) and settled:
            self._ask([lease.peer_id for lease in preferred(claims, head)], view, head, now)
        return frozenset([lease.peer_id for lease in unproven])

    def _ask(self, claimants: Sequence[str], view: View, head: Head, now: float) -> None:
        waiting = self._asked | self._doubts.held(now)
        ready = [peer for peer in claimants if peer not in waiting]
        for peer in in_turn(ready, view, head, self._doubts)[: AT_ONCE - len(self._asked)]:
            self._asked.add(peer)
            threading.Thread(target=self._check, args=(peer,), name="claim", daemon=True).start()

    def _check(self, peer: str) -> None:
        began, proven = self._clock.now(), False
        try:
            proven = self._state_sync.prove(peer)
        except (PeerRefused, OSError):
            pass  # said where it was found
        finally:
            self._outcomes.put((peer, proven, self._clock.now() - began))

    def _learn(self, now: float) -> None:
        while not self._outcomes.empty():
            peer, proven, seconds = self._outcomes.get()
            self._asked.discard(peer)
            if proven:
                self._doubts.forgive(peer)
            else:
                self._doubts.fail(peer, now + COST_FACTOR * seconds)
