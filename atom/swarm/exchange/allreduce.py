"""The all-reduce: every member ends with the same bytes, or with a named failure.

Two threads per connection: one sends, one receives; the caller's thread watches for cancellation.
The source is only read, the result only written, so a broken exchange costs nothing but time. A
member that notices a failure tells its peers whom it blames before it hangs up; a member that
merely starves says so in WAITING frames. So the silence of one peer is not blamed on the innocent
ones behind it.
"""

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.channels import Channels, open_exchange
from atom.swarm.exchange.parts import OwnPart, PartsReceiver, PartsSender
from atom.swarm.exchange.plans import PartsPlan, RingPlan
from atom.swarm.exchange.reduction import Arenas, ExchangeBroken, Reduction, Terms, tell_broken
from atom.swarm.exchange.ring import RingReceiver, RingSender
from atom.swarm.stream.frames import Channel, Interrupted

__all__ = [
    "Arenas",
    "Channels",
    "ExchangeBroken",
    "Terms",
    "all_reduce",
    "open_exchange",
]

assert sys.byteorder == "little", "chunks travel in the machine's own byte order"

_WATCH_S = 0.05
_GRACE_S = 1.0


def all_reduce(
    arenas: Arenas,
    terms: Terms,
    channels: Channels,
    cancelled: threading.Event | None = None,
    plan: RingPlan | PartsPlan | None = None,
) -> None:
    """result = scale · Σ sources over the members: in a ring, or by parts with owners.

    `channels` come from `open_exchange` and are closed when this returns or raises; its
    threads are gone by then. After a failure the contents of `result` and `residual` mean nothing;
    `source` is never written.

    Raises: ExchangeBroken. TIMEOUT or RING_BROKEN: a peer fell silent or hung up. TOO_SLOW: a peer,
    or, without a suspect, the ring as a whole. MALFORMED: a chunk of the wrong place, hop or
    attempt, or bytes that no encoder writes. NOT_FINITE: someone's numbers, and we may
    ourselves be the suspect. SUPERSEDED: `cancelled` was set.
    """
    arenas.check()
    chosen = plan or terms.plan(arenas.result.numel())
    reduction = Reduction(terms, arenas, chosen)
    if not channels.right:
        assert len(terms.members) == 1
        reduction.alone()
        return
    try:
        _run(_works(reduction, channels), reduction, channels, cancelled or threading.Event())
    finally:
        channels.close()
    if reduction.failure is not None:
        raise reduction.failure


def _works(reduction: Reduction, channels: Channels) -> list[Callable[[], None]]:
    """What the threads do: one per connection and direction."""
    plan, rank = reduction.plan, reduction.terms.rank
    senders, receivers = list[RingSender](), list[RingReceiver]()
    if isinstance(plan, RingPlan):
        senders = [RingSender(reduction, right, plan.sends(rank)) for right in channels.right]
        receivers = [RingReceiver(reduction, left, plan.receives(rank)) for left in channels.left]
    else:
        own = OwnPart(reduction, plan)
        for lane, peer in enumerate(plan.peers(rank)):
            left, right = channels.left[lane], channels.right[lane]
            senders.append(PartsSender(reduction, right, plan.stream(rank, peer), own))
            receivers.append(PartsReceiver(reduction, left, plan.stream(peer, rank), own, lane))
    return [
        *(
            partial(_send_all, reduction, *each)
            for each in zip(senders, channels.right, strict=True)
        ),
        *(
            partial(_receive_all, reduction, *each)
            for each in zip(receivers, channels.left, strict=True)
        ),
    ]


def _run(
    works: list[Callable[[], None]],
    reduction: Reduction,
    channels: Channels,
    cancelled: threading.Event,
) -> None:
    """Runs all threads to their end; gives a failing one a moment for its last words."""
    threads = list[threading.Thread]()
    try:
        for work in works:
            thread = threading.Thread(target=work, name="atom-all-reduce")
            thread.start()
            threads.append(thread)
    except RuntimeError as problem:  # those that were started must not outlive this call
        reduction.fail(ExchangeBroken(reduction.terms.me, Reason.RING_BROKEN, str(problem)))
    while not reduction.over.wait(_WATCH_S):
        if cancelled.is_set():
            reduction.fail(ExchangeBroken(None, Reason.SUPERSEDED, "cancelled here"))
    deadline = time.monotonic() + _GRACE_S
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    channels.close()  # frees a sender whose neighbour does not read
    for thread in threads:
        thread.join()


def _send_all(reduction: Reduction, sender: RingSender, right: Channel) -> None:
    _guard(reduction, sender.run, sender.blame)
    if reduction.failure is not None and sender.between_frames:
        tell_broken(right, reduction.failure, reduction.terms.me)


def _receive_all(reduction: Reduction, receiver: RingReceiver, left: Channel) -> None:
    _guard(reduction, receiver.run, receiver.blame)
    if reduction.failure is not None:
        tell_broken(left, reduction.failure, reduction.terms.me)


def _guard(
    reduction: Reduction, run: Callable[[], None], blame: Callable[[Reason, str], ExchangeBroken]
) -> None:
    """Turns whatever ends `run` early into the reduction's failure."""
    try:
        run()
        reduction.through()
    except Interrupted:
        pass  # somebody else failed, and said so
    except ExchangeBroken as broken:
        reduction.fail(broken)
    except PeerRefused as refused:
        reduction.fail(blame(refused.reason, refused.detail))
    except TimeoutError as error:
        reduction.fail(blame(Reason.TIMEOUT, str(error)))
    except OSError as error:
        reduction.fail(blame(Reason.RING_BROKEN, str(error)))
    except Exception as error:  # noqa: BLE001 - supervisor: raised again in the caller's thread
        reduction.fail(error)
