"""The all-reduce: every member ends with the same bytes, or with a named failure.

Two threads per connection: one sends, one receives; the caller's thread watches for cancellation.
The result is memory of its own, so a broken exchange costs nothing but time. A
member that notices a failure tells its peers whom it blames before it hangs up; a member that
merely starves says so in WAITING frames. So the silence of one peer is not blamed on the innocent
ones behind it.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.exchange.channels import Channels, open_exchange
from atom.swarm.exchange.contribution import Contribution, Sums
from atom.swarm.exchange.encoded import MeanWires
from atom.swarm.exchange.parts import OwnPart, PartsReceiver
from atom.swarm.exchange.plans import PartsPlan, Step
from atom.swarm.exchange.reduction import (
    ExchangeBroken,
    Landed,
    Reduction,
    Terms,
    tell_broken,
)
from atom.swarm.exchange.ring import Half, Receiver, Sender
from atom.swarm.stream.frames import Channel, Interrupted

__all__ = [
    "Channels",
    "Contribution",
    "ExchangeBroken",
    "Sums",
    "Terms",
    "all_reduce",
    "open_exchange",
]

assert sys.byteorder == "little", "chunks travel in the machine's own byte order"

_WATCH_S = 0.05
_GRACE_S = 1.0


def all_reduce(
    source: Contribution | None,
    wires: MeanWires,
    terms: Terms,
    channels: Channels,
    cancelled: threading.Event | None = None,
    landed: Landed = lambda start, stop: None,
) -> None:
    """The mean, scale · Σ sources over the members, into `wires`: in a ring, or by parts with
    owners. The same bytes on all of them.

    `source`: what this member brings; None counts as zeros. `wires`: `mean_wires` of the terms,
    new; what is there can be read once it has `landed`.

    `channels` come from `open_exchange` and are closed when this returns or raises; its
    threads are gone by then. After a failure what `wires` hold means nothing, nor what the
    source was told to lack.

    Raises: ExchangeBroken. TIMEOUT or RING_BROKEN: a peer fell silent or hung up. TOO_SLOW: a peer,
    or, without a suspect, the ring as a whole. MALFORMED: a chunk of the wrong place, hop or
    attempt, or bytes that no encoder writes. NOT_FINITE: someone's numbers, and we may
    ourselves be the suspect. SUPERSEDED: `cancelled` was set.
    """
    reduction = Reduction(terms, source, wires, landed)
    if not channels.right:
        assert len(terms.members) == 1
        reduction.alone()
        return
    try:
        _run(reduction, channels, cancelled or threading.Event())
    finally:
        channels.close()
    if reduction.failure is not None:
        raise reduction.failure


def _halves(reduction: Reduction, channels: Channels) -> list[Half]:
    """What the threads run: one per connection and direction."""
    plan, rank, (lefts, rights) = reduction.plan, reduction.terms.rank, reduction.terms.neighbours
    receiver: Callable[[Reduction, Channel, Iterable[Step]], Half] = Receiver
    if isinstance(plan, PartsPlan):
        receiver = partial(PartsReceiver, OwnPart(reduction, plan))
    sends = zip(channels.right, rights, strict=True)
    receives = zip(channels.left, lefts, strict=True)
    return [
        *(Sender(reduction, right, plan.stream(rank, peer)) for right, peer in sends),
        *(receiver(reduction, left, plan.stream(peer, rank)) for left, peer in receives),
    ]


def _run(reduction: Reduction, channels: Channels, cancelled: threading.Event) -> None:
    """Runs all threads to their end; gives a failing one a moment for its last words."""
    halves, threads = _halves(reduction, channels), list[threading.Thread]()
    try:
        for half in halves:
            thread = threading.Thread(target=_work, args=(half,), name="atom-all-reduce")
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


def _work(half: Half) -> None:
    """Turns whatever ends `half` early into the reduction's failure, and passes that on."""
    reduction = half.reduction
    try:
        half.run()
        reduction.through()
    except Interrupted:
        pass  # somebody else failed, and said so
    except ExchangeBroken as broken:
        reduction.fail(broken)
    except PeerRefused as refused:
        reduction.fail(half.blame(refused.reason, refused.detail))
    except TimeoutError as error:
        reduction.fail(half.blame(Reason.TIMEOUT, str(error)))
    except OSError as error:
        reduction.fail(half.blame(Reason.RING_BROKEN, str(error)))
    except Exception as error:  # noqa: BLE001 - supervisor: raised again in the caller's thread
        reduction.fail(error)
    if reduction.failure is not None and half.between_frames:
        tell_broken(half.channel, reduction.failure, reduction.terms.me)
