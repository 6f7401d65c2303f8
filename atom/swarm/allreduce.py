"""The ring all-reduce: every member ends with the same bytes, or with a named failure.

Two threads per connection: one sends to the right, one receives from the left; the caller's thread
watches for cancellation. Several connections take the chunks in turn. The source is only read, the
result only written, so a broken ring costs nothing but time. Whoever notices a failure tells both
neighbours whom it blames before it hangs up; a member that merely starves says so in WAITING
frames. So the silence of one peer is not blamed on its innocent successors.
"""

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.algorithm import Algorithm
from atom.swarm.frames import Channel, Interrupted
from atom.swarm.one_shot import OneShotPlan
from atom.swarm.reduction import Arenas, Reduction, RingTerms
from atom.swarm.ring import RingPlan
from atom.swarm.ring_channels import RingChannels, open_one_shot, open_ring
from atom.swarm.ring_failure import RingBroken, tell_broken
from atom.swarm.ring_receiver import RingReceiver
from atom.swarm.ring_sender import RingSender
from atom.swarm.share import Parts, ShareReceiver

__all__ = [
    "Arenas",
    "RingBroken",
    "RingChannels",
    "RingTerms",
    "all_reduce",
    "open_one_shot",
    "open_ring",
]

assert sys.byteorder == "little", "chunks travel in the machine's own byte order"

_WATCH_S = 0.05
_GRACE_S = 1.0


def all_reduce(
    arenas: Arenas,
    terms: RingTerms,
    channels: RingChannels,
    cancelled: threading.Event | None = None,
    plan: RingPlan | None = None,
) -> None:
    """result = scale · Σ sources over the members.

    `channels` come from `open_ring` and are closed when this returns or raises; its threads are
    gone by then. After a failure the contents of `result` and `residual` mean nothing; `source` is
    never written.

    Raises: RingBroken. TIMEOUT or RING_BROKEN: a neighbour fell silent or hung up. TOO_SLOW: the
    ring as a whole, and `standing` is our part of the evidence. MALFORMED: a
    chunk of the wrong place, hop, attempt or contributors. NOT_FINITE: someone's numbers, and we
    may ourselves be the suspect. SUPERSEDED: `cancelled` was set.
    """
    arenas.check()
    geometry = plan or RingPlan.usual(arenas.result.numel(), len(terms.members))
    direct = terms.algorithm is Algorithm.ONE_SHOT
    reduction = Reduction(
        terms, arenas, OneShotPlan(geometry) if direct else geometry, len(channels.right)
    )
    if not channels.right:
        assert len(terms.members) == 1
        reduction.alone()
        return
    try:
        _run(_works(reduction, channels), reduction, channels, cancelled or threading.Event())
    finally:
        channels.close()
    if reduction.failure is not None:
        if isinstance(reduction.failure, RingBroken):
            reduction.failure.standing = reduction.standing()
        raise reduction.failure


def _works(reduction: Reduction, channels: RingChannels) -> list[Callable[[], None]]:
    """What the threads do: one per connection and direction."""
    receiver: Callable[[Reduction, Channel, int], RingReceiver] = RingReceiver
    if isinstance(reduction.plan, OneShotPlan):
        receiver = partial(ShareReceiver, parts=Parts(reduction, reduction.plan))
    sending = (
        partial(_send_all, reduction, RingSender(reduction, channel, lane), channel)
        for lane, channel in enumerate(channels.right)
    )
    receiving = (
        partial(_receive_all, reduction, receiver(reduction, channel, lane), channel)
        for lane, channel in enumerate(channels.left)
    )
    return [*sending, *receiving]


def _run(
    works: list[Callable[[], None]],
    reduction: Reduction,
    channels: RingChannels,
    cancelled: threading.Event,
) -> None:
    """Runs all threads to their end; gives a failing one a moment for its last words."""
    threads = [threading.Thread(target=work, name="atom-all-reduce") for work in works]
    for thread in threads:
        thread.start()
    while not reduction.over.wait(_WATCH_S):
        if cancelled.is_set():
            reduction.fail(RingBroken(None, Reason.SUPERSEDED, "cancelled here"))
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
    reduction: Reduction, run: Callable[[], None], blame: Callable[[Reason, str], RingBroken]
) -> None:
    """Turns whatever ends `run` early into the reduction's failure."""
    try:
        run()
        reduction.through()
    except Interrupted:
        pass  # somebody else failed, and said so
    except RingBroken as broken:
        reduction.fail(broken)
    except PeerRefused as refused:
        reduction.fail(blame(refused.reason, refused.detail))
    except TimeoutError as error:
        reduction.fail(blame(Reason.TIMEOUT, str(error)))
    except OSError as error:
        reduction.fail(blame(Reason.RING_BROKEN, str(error)))
    except Exception as error:  # noqa: BLE001 - supervisor: raised again in the caller's thread
        reduction.fail(error)
