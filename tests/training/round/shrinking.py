"""A history that breaks a promise, made small: fewer strikes, fewer peers, less time.

What is left still breaks the *same* promise. Strikes are cut in ever smaller pieces (delta
debugging), then peers, then the quiet time at both ends; and again, until nothing more can go.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from histories import History
from strikes import Strike

MOST_PLAYS = 400


@dataclass
class Shrinker:
    """`breaks(history)` names the promise that it breaks, or is empty."""

    breaks: Callable[[History], str]
    most_plays: int = MOST_PLAYS
    plays: int = 0

    def shrink(self, history: History) -> History:
        """The smallest history found that breaks what `history` breaks."""
        promise = self.breaks(history)
        assert promise, "nothing is broken"
        smaller: History | None = history
        while smaller is not None:
            history = smaller
            smaller = self._first_that_breaks(promise, self._smaller(history))
        return history

    def _first_that_breaks(self, promise: str, candidates: Iterator[History]) -> History | None:
        for candidate in candidates:
            if self.plays >= self.most_plays:
                return None
            self.plays += 1
            if self.breaks(candidate) == promise:
                return candidate
        return None

    def _smaller(self, history: History) -> Iterator[History]:
        for strikes in _fewer(history.strikes):
            yield replace(history, strikes=strikes)
        peers = history.setting.peers
        for fewer in range(1, peers):
            yield replace(history, setting=replace(history.setting, peers=fewer))
        last_s = history.strikes[-1].at_s if history.strikes else 0.0
        if history.faults_end_s > last_s + 1.0:
            yield replace(history, faults_end_s=last_s + 1.0)


def _fewer(strikes: tuple[Strike, ...]) -> Iterator[tuple[Strike, ...]]:
    """Without one half, without one quarter, …, without one."""
    piece = len(strikes)
    while piece:
        for start in range(0, len(strikes), piece):
            yield strikes[:start] + strikes[start + piece :]
        piece //= 2


def explained(history: History, most_plays: int = MOST_PLAYS) -> str:
    """The shrunk history as a line that plays it again, and its story."""
    small = Shrinker(History.broken_promise, most_plays).shrink(history)
    try:
        small.play()
    except AssertionError as broken:
        before, after = len(history.strikes), len(small.strikes)
        size = f"{before} strikes on {history.setting.peers} peers, shrunk to {after}"
        return f"{size} on {small.setting.peers}:\n{small}\n{broken}"
    raise AssertionError("a history is not the same twice")
