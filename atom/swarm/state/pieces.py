"""Which donor is asked for which piece of a blob. Pure: the time is given, nobody sleeps here.

Every donor works off a queue of requests of its own: deep enough to fill its link over a long way,
short enough to leave nothing behind with a slow one. When nothing is left to ask for, an idle donor
takes over what another one would deliver much later; the first copy to land counts. A piece is
asked of two donors at most, so a slow donor costs its queue once more and nothing else.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

Piece = tuple[int, int]
"""Arena, chunk."""
FEWEST, MOST = 2, 8
"""Requests under way with one donor: one is served while the next travels; at most 32 MiB."""
_ROUND_TRIP_S = 1.5
"""Longer than any round trip that TCP bears, so that a queue grows until the link is full."""
_COPIES = 2
_MUCH_LATER, _WORTH_S = 2.0, 0.5
"""Less is not worth a second copy."""
_NEW_WEIGHT = 0.4
_UNPROVEN_PER_S = 1.0
"""What is expected of a donor that has delivered nothing yet, when it could help another out."""


@dataclass
class _Work:
    """What one donor was asked for, in order, and how fast it answers."""

    asked: deque[Piece] = field(default_factory=deque)
    since: float = 0.0
    """When it last delivered, or began with an empty queue."""
    pieces_per_s: float | None = None


class PieceBook:
    """Pieces wanted, asked for and landed. Not thread-safe."""

    def __init__(self, wanted: Sequence[Piece]) -> None:
        self._pending = deque(wanted)
        self._askers: dict[Piece, set[str]] = {piece: set() for piece in wanted}
        self._work: dict[str, _Work] = {}
        self.duplicates = 0
        """Pieces asked of a second donor."""

    @property
    def missing(self) -> int:
        return len(self._askers)

    def take(self, donor: str, now: float) -> Piece | None:
        """A piece to ask `donor` for; None if it has enough to do, or nothing is left for it."""
        work = self._work.setdefault(donor, _Work(since=now))
        if len(work.asked) >= self._room(work):
            return None
        piece = self._pending.popleft() if self._pending else self._overdue(donor, work, now)
        if piece is None:
            return None
        if not work.asked:
            work.since = now
        work.asked.append(piece)
        self._askers[piece].add(donor)
        return piece

    def landed(self, donor: str, now: float) -> bool:
        """The piece at the front of the donor's queue came; whether it was still missing."""
        work = self._work[donor]
        piece = work.asked.popleft()
        rate = 1.0 / max(now - work.since, 1e-6)
        if work.pieces_per_s is not None:
            rate = _NEW_WEIGHT * rate + (1 - _NEW_WEIGHT) * work.pieces_per_s
        work.pieces_per_s, work.since = rate, now
        return self._askers.pop(piece, None) is not None

    def drop(self, donor: str) -> None:
        """The donor is gone: what only it was asked for is wanted again, and first."""
        work = self._work.pop(donor, None)
        for piece in reversed(work.asked) if work else ():
            askers = self._askers.get(piece)
            if askers is None:
                continue
            askers.discard(donor)
            if not askers:
                self._pending.appendleft(piece)

    def _room(self, work: _Work) -> int:
        """How many requests this donor may have: what its link holds, or its share of the rest."""
        fair = math.ceil((len(self._pending) + len(work.asked)) / max(len(self._work), 1))
        return max(min(requests_for(work.pieces_per_s), fair), FEWEST)

    def _overdue(self, donor: str, work: _Work, now: float) -> Piece | None:
        """The piece that others would bring last of all, if we bring it much sooner."""
        ours_s = (len(work.asked) + 1) / (work.pieces_per_s or _UNPROVEN_PER_S)
        left = [
            (_left_s(other, index, now), piece)
            for name, other in self._work.items()
            if name != donor
            for index, piece in enumerate(other.asked)
            if donor not in (askers := self._askers.get(piece, {donor})) and len(askers) < _COPIES
        ]
        latest_s, piece = max(left, default=(0.0, None))
        if piece is None or latest_s < max(_MUCH_LATER * ours_s, _WORTH_S):
            return None
        self.duplicates += 1
        return piece


def requests_for(pieces_per_s: float | None) -> int:
    """How many requests keep a link of that speed full; unknown: the fewest."""
    if pieces_per_s is None:
        return FEWEST
    return min(max(1 + math.ceil(_ROUND_TRIP_S * pieces_per_s), FEWEST), MOST)


def _left_s(work: _Work, index: int, now: float) -> float:
    """When the piece at `index` of a queue may be expected. Who is overdue, or has delivered
    nothing yet, is expected to take as long again."""
    silent_s = now - work.since
    if work.pieces_per_s is None:
        return silent_s
    return max((index + 1) / work.pieces_per_s - silent_s, silent_s)
