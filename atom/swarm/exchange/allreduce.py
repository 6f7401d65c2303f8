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
from atom.swarm.exchange.algorithm import Algorithm
from atom.swarm.exchange.carriage import Carriage
from atom.swarm.exchange.carrying import CarriedReceiver, LeafReceiver, MeansSender
from atom.swarm.exchange.channels import RingChannels, open_leaf, open_one_shot, open_ring
from atom.swarm.exchange.failure import RingBroken, tell_broken
from atom.swarm.exchange.geometry import RingPlan
from atom.swarm.exchange.leaves import LeafPlan
from atom.swarm.exchange.one_shot import OneShotPlan
from atom.swarm.exchange.receiver import RingReceiver
from atom.swarm.exchange.reduction import Reduction
from atom.swarm.exchange.sender import RingSender
from atom.swarm.exchange.share import Parts, ShareReceiver
from atom.swarm.exchange.terms import Arenas, RingTerms
from atom.swarm.stream.frames import Channel, Interrupted

__all__ = [
    "Arenas",
    "RingBroken",
    "RingChannels",
    "RingTerms",
    "all_reduce",
    "open_leaf",
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
) -> str:
    """result = scale · Σ sources over the members. Returns the leaf that was too slow to take the
    means from us, or nothing.

    `channels` come from `open_ring` and are closed when this returns or raises; its threads are
    gone by then. After a failure the contents of `result` and `residual` mean nothing; `source` is
    never written.

    Raises: RingBroken. TIMEOUT or RING_BROKEN: a neighbour fell silent or hung up. TOO_SLOW: the
    ring as a whole, and `standing` is our part of the evidence. MALFORMED: a
    chunk of the wrong place, hop, attempt or contributors. NOT_FINITE: someone's numbers, and we
    may ourselves be the suspect. SUPERSEDED: `cancelled` was set.
    """
    arenas.check()
    carriers = tuple(leaf.carrier for leaf in terms.leaves)
    geometry = plan or RingPlan.usual(
        arenas.result.numel(), len(terms.members), carriers, terms.codec.element_bytes
    )
    reduction = _reduction(arenas, terms, channels, geometry)
    if not channels.right:
        assert len(terms.members) == 1
        reduction.alone()
        return ""
    try:
        _run(_works(reduction, channels), reduction, channels, cancelled or threading.Event())
    finally:
        channels.close()
    if reduction.failure is not None:
        raise _seen_from_here(reduction, reduction.failure)
    carriage = reduction.carriage
    return carriage.leaf if carriage is not None and carriage.cut_off else ""


def _reduction(
    arenas: Arenas, terms: RingTerms, channels: RingChannels, geometry: RingPlan
) -> Reduction:
    """What this member does: as one of a ring, with a leaf or without, as a leaf, or directly."""
    assert geometry.carriers == tuple(leaf.carrier for leaf in terms.leaves)
    count = len(channels.right)
    if terms.algorithm is Algorithm.ONE_SHOT:
        return Reduction(terms, arenas, OneShotPlan(geometry), count)
    if terms.rank >= len(terms.members):
        plan = LeafPlan(geometry, terms.rank - len(terms.members))
        return Reduction(terms, arenas, plan, count)
    carriage = None
    if channels.leaf is not None:
        index = geometry.carriers.index(terms.rank)
        carriage = Carriage(LeafPlan(geometry, index), terms.leaves[index].peer_id, *channels.leaf)
    return Reduction(terms, arenas, geometry, count, carriage)


def _seen_from_here(reduction: Reduction, failure: Exception) -> Exception:
    """The failure with what only we know of it: how far we got, or that all waited for our leaf."""
    if not isinstance(failure, RingBroken):
        return failure
    carriage = reduction.carriage
    slow = failure.reason is Reason.TOO_SLOW and failure.suspect is None
    if slow and carriage is not None and carriage.holds_up():
        return RingBroken(carriage.leaf, Reason.TOO_SLOW, "the ring waits for our leaf")
    failure.standing = reduction.standing()
    return failure


def _works(reduction: Reduction, channels: RingChannels) -> list[Callable[[], None]]:
    """What the threads do: one per connection and direction."""
    receiver: Callable[[Reduction, Channel, int], RingReceiver] = RingReceiver
    if isinstance(reduction.plan, OneShotPlan):
        receiver = partial(ShareReceiver, parts=Parts(reduction, reduction.plan))
    elif isinstance(reduction.plan, LeafPlan):
        receiver = LeafReceiver
    sending = (
        partial(_send_all, reduction, RingSender(reduction, channel, lane), channel)
        for lane, channel in enumerate(channels.right)
    )
    receiving = (
        partial(_receive_all, reduction, receiver(reduction, channel, lane), channel)
        for lane, channel in enumerate(channels.left)
    )
    return [*sending, *receiving, *_works_for_a_leaf(reduction)]


def _works_for_a_leaf(reduction: Reduction) -> list[Callable[[], None]]:
    carriage = reduction.carriage
    if carriage is None:
        return []
    receiver, sender = CarriedReceiver(reduction, carriage), MeansSender(reduction, carriage)
    return [
        partial(_receive_all, reduction, receiver, carriage.up),
        partial(_give_back_all, reduction, sender, receiver),
    ]


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
        reduction.cut_off_late_leaf()
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


def _give_back_all(reduction: Reduction, sender: MeansSender, receiver: CarriedReceiver) -> None:
    _guard(reduction, sender.run, receiver.blame)
    if reduction.failure is not None:
        sender.tell(reduction.failure)


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
