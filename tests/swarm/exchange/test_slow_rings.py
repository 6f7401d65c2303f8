"""Members that hold a ring up over real sockets: the honest ones give up, and agree on whom."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from threaded_ring import PARENT, QUICK, SOON, Swarm, broken, sources, swarm_of
from torch import Tensor

from atom.base.reasons import Reason
from atom.swarm.chain.messages import Suspect
from atom.swarm.chain.ring_standing import Pace
from atom.swarm.exchange.geometry import RingPlan, ring_tag
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.training.round.blame import accusations

__all__ = ["swarm_of"]

ELEMENTS, LIAR = 40_000, 2
PACE = Pace(slack_s=0.8)
Play = Callable[[Swarm, Channel, Channel, threading.Event], None]


def keep_waiting(swarm: Swarm, left: Channel, right: Channel, over: threading.Event) -> None:
    """ "I wait for my left neighbour", for ever."""
    while not over.wait(0.05):
        right.send_frame(Kind.WAITING, patience=Patience(SOON))


def dribble(swarm: Swarm, left: Channel, right: Channel, over: threading.Event) -> None:
    """A true chunk, a few bytes at a time: never silent, never done."""
    step = next(RingPlan(ELEMENTS, 4, 48 * 1024, 4 * 1024).sends(LIAR))
    header = RingPlan(ELEMENTS, 4, 48 * 1024, 4 * 1024).header(ring_tag(PARENT, swarm.ballot), step)
    payload = memoryview(header + bytes(4 * (step.stop - step.start)))
    right.send_header(Kind.CHUNK, len(payload), Patience(SOON))
    for start in range(0, len(payload), 64):
        right.send_part(payload[start : start + 64], Patience(SOON))
        if over.wait(0.05):
            return


def failures(swarm: Swarm, play: Play) -> dict[int, Exception]:
    """What the honest members' rings end with."""
    parts, over = sources(4, ELEMENTS), threading.Event()

    def work(rank: int) -> Tensor:
        if rank != LIAR:
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
        honest = [rank for rank in range(4) if rank != LIAR]
        return {rank: broken(futures[rank]) for rank in honest}
    finally:
        over.set()


@pytest.mark.parametrize("play", [keep_waiting, dribble])
def test_who_holds_a_ring_up_is_found_by_all(
    swarm_of: Callable[[str, int], Swarm], play: Play
) -> None:
    swarm = swarm_of("tcp", 4)
    said = {}
    for rank, failure in failures(swarm, play).items():
        assert failure.reason is Reason.TOO_SLOW
        assert failure.standing is not None
        words = (failure.suspect or "", failure.reason, failure.told_by, failure.standing)
        said[swarm.order[rank]] = Suspect(PARENT, swarm.ballot, *words)
    found = accusations(swarm.order, said)
    assert found
    assert all(swarm.order[LIAR] in pair for pair in found)


def test_a_quick_ring_is_never_too_slow(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = swarm_of("tcp", 3), sources(3, ELEMENTS)
    pace = Pace(QUICK.slack_s, 1.0)
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], ELEMENTS, pace=pace))
    assert len({tuple(future.result(SOON).tolist()) for future in work}) == 1
