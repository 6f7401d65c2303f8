"""How well a pass used the device: one line for people, a few shares for programs. Pure."""

from dataclasses import dataclass
from typing import Any

from atom.swap.stalls import NEGLIGIBLE_S, seconds_by_reason
from atom.swap.timeline import Timeline

END = "end"
"""After the device has computed all: the last gradients still leave."""


@dataclass(frozen=True)
class PassShares:
    """Seconds of one pass; computing and waits make up all of it."""

    seconds: float
    computing_s: float
    """Recomputing included."""
    waits_s: dict[str, float]
    """By `Reason`, in small letters, and END. All of them, the absent ones with 0."""

    @classmethod
    def of(cls, timeline: Timeline) -> "PassShares":
        waits = {reason.name.lower(): s for reason, s in seconds_by_reason(timeline).items()}
        computed_until = max((span.end_s for span in timeline.lane("compute")), default=0.0)
        waits[END] = timeline.seconds - computed_until
        return cls(timeline.seconds, timeline.busy_s("compute"), waits)

    @property
    def share(self) -> float:
        """Of the pass, in which the device computes; 0 for an empty pass."""
        return self._share(self.computing_s)

    def to_json(self) -> dict[str, Any]:
        """Shares of the pass, to a tenth of a per mille; `pass_seconds` is what they are of."""
        waits = {reason: round(self._share(s), 4) for reason, s in self.waits_s.items()}
        return {
            "pass_seconds": round(self.seconds, 6),
            "computing": round(self.share, 4),
            "waiting": waits,
        }

    def text(self) -> str:
        """ "the device computes 92.3% of 1.240 s; waits: link 5.1%, host 2.6%"."""
        waits = sorted(self.waits_s.items(), key=lambda item: -item[1])
        words = [f"{r} {self._share(s):.1%}" for r, s in waits if s > NEGLIGIBLE_S]
        computes = f"the device computes {self.share:.1%} of {self.seconds:.3f} s"
        return f"{computes}; waits: {', '.join(words)}" if words else computes

    def _share(self, seconds: float) -> float:
        return seconds / self.seconds if self.seconds else 0.0
