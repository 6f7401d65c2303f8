"""Opening the two connections that make a peer a member of one attempt's ring."""

import time
from collections.abc import Sequence

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain import Ballot
from atom.swarm.frames import Channel, Purpose
from atom.swarm.ring import ring_tag
from atom.swarm.ring_failure import RingBroken
from atom.swarm.transport import PeerTransport


def open_ring(
    transport: PeerTransport,
    me: str,
    order: Sequence[str],
    parent: bytes,
    ballot: Ballot,
    timeout_s: float,
) -> tuple[Channel | None, Channel | None]:
    """Channels (left, right) to the neighbours in `order`; (None, None) for a ring of one.

    Raises: RingBroken naming the neighbour that did not come.
    """
    if len(order) == 1:
        return None, None
    rank, tag = order.index(me), ring_tag(parent, ballot)
    left, right = order[rank - 1], order[(rank + 1) % len(order)]
    deadline = time.monotonic() + timeout_s
    try:
        outgoing = transport.connect(right, Purpose.RING, tag)
    except PeerRefused as refused:
        raise RingBroken(right, refused.reason, refused.detail) from refused
    except OSError as error:
        raise RingBroken(right, Reason.RING_BROKEN, str(error)) from error
    try:
        incoming = transport.accept_ring(left, tag, max(deadline - time.monotonic(), 0.0))
    except (PeerRefused, OSError) as error:
        outgoing.close()
        reason = error.reason if isinstance(error, PeerRefused) else Reason.RING_BROKEN
        raise RingBroken(left, reason, str(error)) from error
    return incoming, outgoing
