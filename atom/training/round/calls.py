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

    def allow(self, now: float, pause_s: float) -> bool:
        """Whether to listen; `pause_s`: what one attempt in vain and another's beginning take."""
        beyond = self._made - FREE
        pause_s *= 0 if beyond < 0 else 2 ** min(beyond, _MOST_DOUBLINGS)
        if now < self._last_at + pause_s:
            return False
        self._made += 1
        self._last_at = now
        return True
