"""A round's result that others hold: asked for on a thread of its own, told of as an event."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from atom.base.clock import Clock
from atom.base.errors import PeerRefused
from atom.base.events import EventSink
from atom.base.reasons import Reason
from atom.optim.clipping import gradient_norm
from atom.swarm.stream.pace import Pace
from atom.training.round.events import Event, Fetched, FetchFailed
from atom.training.state_sync.state_sync import StateSync

PATIENCE_S, HASTE_S = 6.0, 4.0
"""How long it is asked for again, of holders that do not offer it yet: for a step, or for a vote.
The latter is less than `Patience.holding`: a result that is nowhere is to be known for that before
the next attempt (a test holds them together)."""
PAUSE_S = 0.4


@dataclass(frozen=True)
class Wanted:
    """One result."""

    digest: bytes
    holders: tuple[str, ...]
    pace: Pace
    """The least that they must give: else a liar could keep everybody waiting, byte by byte."""
    committed: bool


class ResultFetch:
    """What is fetched is held among the results before anybody hears of it."""

    def __init__(self, state_sync: StateSync, clock: Clock, events: EventSink) -> None:
        self._state_sync = state_sync
        self._clock = clock
        self._events = events
        self._closing = threading.Event()

    def start(self, wanted: Wanted, post: Callable[[Event], None]) -> None:
        """`post` gets `Fetched` or `FetchFailed`, from the thread that asks."""
        task = threading.Thread(target=self._fetch, args=(wanted, post), name="fetch", daemon=True)
        task.start()

    def close(self) -> None:
        """Nobody is asked again; what is under way ends by itself."""
        self._closing.set()

    def _fetch(self, wanted: Wanted, post: Callable[[Event], None]) -> None:
        digest = wanted.digest
        try:
            result = self._fetched(wanted)
            if not math.isfinite(gradient_norm(result)):
                raise PeerRefused(Reason.NOT_FINITE, "the result fetched")
        except Exception as problem:  # noqa: BLE001 - whatever it is, the round must hear of it
            self._events.emit("fetch-failed", detail=f"{type(problem).__name__}: {problem}"[:200])
            post(FetchFailed(digest))
            return
        post(Fetched(digest))

    def _fetched(self, wanted: Wanted) -> Tensor:
        """Asks again for a while: a holder offers a result once it has accepted it, or stepped."""
        give_up_at = self._clock.now() + (PATIENCE_S if wanted.committed else HASTE_S)
        while True:
            try:
                return self._state_sync.fetch_result(wanted.digest, wanted.holders, wanted.pace)
            except (PeerRefused, OSError):
                if self._clock.now() >= give_up_at or self._closing.wait(PAUSE_S):
                    raise
