"""What becomes of our own sums when a number in them is larger than a ring would take from us.

Each pass was sound, so mostly it is an error of this machine: then the sums are dropped, and the
others go on without them. But gradients may also have grown for everybody. If all drop theirs, no
round is ever full; so who has dropped them twice at one head makes them smaller instead, as
clipping does. Later limits follow the norm of what comes of that.
"""

import math
from collections.abc import Callable

from atom.base.events import EventSink
from atom.swap.gate import largest_size
from atom.swap.voided import Cause, PassVoided
from atom.training.replica.replica import Replica

_PATIENCE = 2
_MARGIN = 1 - 2.0**-6
"""The product is rounded, to bfloat16 perhaps, and shall stay below."""


class Excess:
    """Of one replica. On the worker's thread."""

    def __init__(
        self, replica: Replica, events: EventSink, on_void: Callable[[PassVoided], None]
    ) -> None:
        self._replica = replica
        self._events = events
        self._on_void = on_void
        self._head = b""
        self._dropped = 0
        """Times, at this head."""

    def keep_within(self, limit: float) -> None:
        """Before the gradients are offered: afterwards no number of them is beyond ± `limit`."""
        replica = self._replica
        head, largest = replica.gradients_tag, largest_size(replica.gradients)
        if largest <= limit:
            return
        if head != self._head:
            self._head, self._dropped = head, 0
        if not math.isfinite(largest):
            self._events.emit("gradients-dropped", reason="not-finite")
        elif self._dropped < _PATIENCE:
            self._dropped += 1
            detail = f"a number of {largest:.3g}, where the latest rounds allow {limit:.3g}"
            self._on_void(PassVoided(Cause.SUMS, detail, replica.sequences))
        else:
            factor = _MARGIN * limit / largest
            replica.gradients.mul_(factor)
            self._events.emit("gradients-reduced", factor=factor, largest=largest, limit=limit)
            return
        replica.reset_gradients(head)
