"""Members that hold an exchange up over real sockets: the others give up."""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from threaded_ring import QUICK, SOON, Swarm, broken, sources, swarm_of
from torch import Tensor

from atom.base.reasons import Reason
from atom.swarm.exchange.plans import RingPlan, chunk_header
from atom.swarm.exchange.reduction import ExchangeBroken
from atom.swarm.stream.frames import Channel, Kind, Pace, Patience

__all__ = ["swarm_of"]

ELEMENTS, SLOW = 40_000, 2
PACE = Pace(slack_s=0.8)
Play = Callable[[Swarm, Channel, Channel, threading.Event], None]


def keep_waiting(swarm: Swarm, left: Channel, right: Channel, over: threading.Event) -> None:
    """ "I wait for my left neighbour", for ever."""
    while not over.wait(0.05):
        right.send_frame(Kind.WAITING, patience=Patience(SOON))


def dribble(swarm: Swarm, left: Channel, right: Channel, over: threading.Event) -> None:
    """A true chunk, a few bytes at a time: never silent, never done."""
    step = next(RingPlan(ELEMENTS, 4, 48 * 1024, 4 * 1024).sends(SLOW))
    header = chunk_header(swarm.terms(SLOW).tag, step)
    payload = memoryview(header + bytes(4 * (step.stop - step.start)))
    right.send_header(Kind.CHUNK, len(payload), Patience(SOON))
    for start in range(0, len(payload), 64):
        right.stream.send_all(payload[start : start + 64], Patience(SOON))
        if over.wait(0.05):
            return


def failures(swarm: Swarm, play: Play) -> dict[int, ExchangeBroken]:
    """What the other members' rings end with."""
    parts, over = sources(4, ELEMENTS), threading.Event()

    def work(rank: int) -> Tensor:
        if rank != SLOW:
            return swarm.member(rank, parts[rank], ELEMENTS, pace=PACE)
        left, right = swarm.open(rank)
        try:
            play(swarm, left, right, over)
        except ConnectionError:
            over.wait(SOON)
        finally:
            left.close()
            right.close()
        return parts[rank]

    futures: list[Future[Tensor]] = swarm.start(work)
    try:
        others = [rank for rank in range(4) if rank != SLOW]
        return {rank: broken(futures[rank]) for rank in others}
    finally:
        over.set()


@pytest.mark.parametrize("play", [keep_waiting, dribble])
def test_a_ring_that_is_held_up_ends_for_all_and_names_nobody(
    swarm_of: Callable[..., Swarm], play: Play
) -> None:
    for failure in failures(swarm_of(4), play).values():
        assert (failure.reason, failure.suspect) == (Reason.TOO_SLOW, None)


def test_a_flood_of_waiting_ends_as_well(swarm_of: Callable[..., Swarm]) -> None:
    """There is always something to be read, so nobody ever has to wait for it. Of two: nobody else
    could tell."""
    swarm, part = swarm_of(2), sources(1, 4096)[0]
    future = swarm.pool.submit(swarm.member, 0, part, 4096, silence_s=0.1, pace=Pace(0.5))
    channels = swarm.open_all(1)
    many = memoryview((bytes(4) + bytes([Kind.WAITING])) * 10_000)
    deadline = time.monotonic() + SOON
    with contextlib.suppress(ConnectionError):
        while not future.done() and time.monotonic() < deadline:
            channels.right[0].stream.send_all(many, Patience(SOON))
    channels.close()
    assert broken(future).reason is Reason.TOO_SLOW


def test_parts_name_the_member_that_holds_them_up(swarm_of: Callable[..., Swarm]) -> None:
    swarm, parts, over = swarm_of(4, (1, 1, 1, 0)), sources(4, ELEMENTS), threading.Event()

    def work(rank: int) -> Tensor:
        if rank != SLOW:
            return swarm.member(rank, parts[rank], ELEMENTS, pace=PACE)
        channels = swarm.open_all(rank)
        with contextlib.suppress(ConnectionError):
            while not over.wait(0.05):
                for channel in channels.right:
                    channel.send_frame(Kind.WAITING, patience=Patience(SOON))
        over.wait(SOON)
        channels.close()
        return parts[rank]

    futures = swarm.start(work)
    try:
        named = {broken(futures[rank]).suspect for rank in range(4) if rank != SLOW}
        assert named == {swarm.order[SLOW]}
    finally:
        over.set()


def test_a_quick_ring_is_never_too_slow(swarm_of: Callable[..., Swarm]) -> None:
    swarm, parts = swarm_of(3), sources(3, ELEMENTS)
    pace = Pace(QUICK.slack_s, 1.0)
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], ELEMENTS, pace=pace))
    assert len({tuple(future.result(SOON).tolist()) for future in work}) == 1
