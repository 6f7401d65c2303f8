"""How often one coordinator may call for promises at one head. Pure."""

FREE = 6
"""Attempts, before it has to leave time for others. A round does not need many."""
_MOST_DOUBLINGS = 2


class Calls:
    """Each call takes its receiver's time until it comes to nothing. Then the others have to be
    quiet for a while before one of them leads; so whoever calls again sooner keeps all of them from
    it for ever."""

    def __init__(self) -> None:
        self._made = 0
        self._last_at = float("-inf")
        self._took_s: float | None = None
        """The last one, of our time; None: it was not called off."""

    def allow(self, now: float, attempt_s: float, turn_s: float) -> bool:
        """Whether to listen. `attempt_s`: what a call takes of us at most; `turn_s`: what
        another's beginning takes."""
        beyond = self._made - FREE
        took_s = attempt_s if self._took_s is None else min(self._took_s, attempt_s)
        scale = 0 if beyond < 0 else 2 ** min(beyond, _MOST_DOUBLINGS)
        return now >= self._last_at + scale * (took_s + turn_s)

    def made(self, now: float) -> None:
        """We listen to a call."""
        self._made += 1
        self._last_at = now
        self._took_s = None

    def called_off(self, now: float) -> None:
        """The last one, by its coordinator: it takes no more of us."""
        self._took_s = now - self._last_at
