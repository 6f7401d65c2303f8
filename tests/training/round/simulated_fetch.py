"""How a simulated process gets a result that others hold."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom.training.round.events import FetchResult, ResultFetched
from atom.training.round_executor import HASTE_S, PATIENCE_S, PAUSE_S

if TYPE_CHECKING:
    from simulated_peer import Process

SILENT_HOLDER_SECONDS = (5.0, 11.0)
"""How long a holder that is frozen or cut off is waited for."""


@dataclass(frozen=True)
class Fetch:
    """One result, asked for until it is there or the time for that is over."""

    process: "Process"
    wanted: FetchResult

    def start(self) -> None:
        process, digest = self.process, self.wanted.digest
        own = process.results.get(digest)  # a catch-up in vain leaves it in memory
        if own is not None:
            process.later(0.01, lambda: process.handle(ResultFetched(digest, is_here=True)))
            return
        until = process.now() + (PATIENCE_S if self.wanted.committed else HASTE_S)
        process.later(process.dice.uniform(0.05, 0.4), lambda: self.try_holders(until))

    def try_holders(self, until: float) -> None:
        """All at once: whoever gives it spares us the wait for those who say nothing."""
        process, swarm = self.process, self.process.swarm
        digest, holders = self.wanted.digest, self.wanted.holders
        there = [swarm.reachable(process.peer_id, holder) for holder in holders]
        for other in there:
            if other is not None and digest in other.results:
                process.results[digest] = other.results[digest]
                process.handle(ResultFetched(digest, is_here=True))
                return
        if any(swarm.silent(process.peer_id, holder) for holder in holders):
            delay = process.dice.uniform(*SILENT_HOLDER_SECONDS)
            process.later(delay, lambda: process.handle(ResultFetched(digest, is_here=False)))
        elif process.now() >= until:
            process.handle(ResultFetched(digest, is_here=False))
        else:
            process.later(PAUSE_S, lambda: self.try_holders(until))
