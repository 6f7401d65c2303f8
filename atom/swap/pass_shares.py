"""How well a pass used the device: what share of it was computing, and what the rest waited for.

Each gap in a timeline's computing is put down to what would have to change for it to be shorter.
Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from atom.swap.schedule import Backward, GradientOut, Load, ValuesIn, ValuesOut
from atom.swap.timeline import Span, Timeline

LINK = "link"
"""Its parameters were not loaded yet."""
GRADIENTS = "gradients"
"""Earlier gradients had not left their slot yet."""
OPTIMIZER = "optimizer"
"""Its parameters were still being updated."""
VALUES = "values"
"""Values between sub-models were on their way: to the host or back, or from another device."""
HOST = "host"
"""The host was busy with something else."""
END = "end"
"""After the device has computed all: the last gradients still leave."""
NEGLIGIBLE_S = 1e-9
"""Rounding of sums of seconds, not a gap."""


class Wait(NamedTuple):
    """The device had nothing to do until `sub_model` could go on."""

    sub_model: int
    reason: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class PassShares:
    """Seconds of one pass; computing and waits make up all of it."""

    seconds: float
    computing_s: float
    """Recomputing included."""
    waits_s: dict[str, float]
    """By reason. All of them, the absent ones with 0."""

    @classmethod
    def of(cls, timeline: Timeline) -> "PassShares":
        """Of several devices, in the mean. What one waits for without another reason is values that
        come from the others."""
        waits_s = dict.fromkeys((LINK, GRADIENTS, OPTIMIZER, VALUES, HOST, END), 0.0)
        devices = timeline.devices
        for own in map(timeline.of_device, range(devices)):
            for wait in waits(own):
                reason = VALUES if wait.reason == HOST and devices > 1 else wait.reason
                waits_s[reason] += (wait.end_s - wait.start_s) / devices
            computed_until = max((span.end_s for span in own.lane("compute")), default=0.0)
            waits_s[END] += (timeline.seconds - computed_until) / devices
        return cls(timeline.seconds, timeline.busy_s("compute"), waits_s)

    @property
    def share(self) -> float:
        """Of the pass, in which the device computes; 0 for an empty pass."""
        return self._share(self.computing_s)

    def to_json(self) -> dict[str, Any]:
        """Shares of the pass, to a tenth of a per mille; `pass_seconds` is what they are of."""
        return {
            "pass_seconds": round(self.seconds, 6),
            "computing": round(self.share, 4),
            "waiting": {reason: round(self._share(s), 4) for reason, s in self.waits_s.items()},
        }

    def _share(self, seconds: float) -> float:
        return seconds / self.seconds if self.seconds else 0.0


def waits(timeline: Timeline) -> list[Wait]:
    """Every wait of the device, in order, until it computes no more. A gap is cut at the end of the
    update, then of the load, then of the gradients, then of values."""
    found, free_s = list[Wait](), 0.0
    moves = [*timeline.lane("load"), *timeline.lane("gradients")]
    steps = timeline.lane("optimizer")
    for span in timeline.lane("compute"):
        at = free_s
        if span.start_s - at > NEGLIGIBLE_S:
            for reason, until in _causes(span, free_s, moves, steps):
                until = min(until, span.start_s)
                if until - at > NEGLIGIBLE_S:
                    found.append(Wait(span.sub_model, reason, at, until))
                    at = until
        free_s = max(free_s, span.end_s)
    return found


def _causes(
    span: Span, free_s: float, moves: Sequence[Span], steps: Sequence[Span]
) -> Iterator[tuple[str, float]]:
    """Each with the second until which it held the sub-model back."""
    s, start_s = span.sub_model, span.start_s
    before = [move for move in moves if move.end_s <= start_s]
    own = [b for b in before if isinstance(b.event, Load) and b.sub_model == s and free_s < b.end_s]
    if own:
        load = own[-1]
        updated = (step.end_s for step in steps if step.sub_model == s)
        # the host's clock and the device's: they may differ by a little
        updates = (min(end_s, load.start_s) for end_s in updated if end_s < load.end_s)
        yield OPTIMIZER, max(updates, default=free_s)
        yield LINK, load.end_s
    if isinstance(span.event, Backward) and span.micro_batch == 0:
        yield GRADIENTS, _last_s(before, GradientOut)
    yield VALUES, _last_s(before, ValuesIn | ValuesOut)
    yield HOST, start_s


def _last_s(spans: list[Span], kind: Any) -> float:
    return max((span.end_s for span in spans if isinstance(span.event, kind)), default=0.0)
