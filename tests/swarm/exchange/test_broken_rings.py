"""Rings that break under way: every honest member names the same one, or the same reason."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from threaded_ring import SILENCE_S, SOON, Swarm, broken, sources, swarm_of
from torch import Tensor

from atom.base.reasons import Reason
from atom.swarm.exchange.allreduce import ExchangeBroken
from atom.swarm.exchange.plans import RingPlan, chunk_header, ring_tag
from atom.swarm.stream.frames import Kind, Patience

__all__ = ["swarm_of"]

ELEMENTS = 200_000


@pytest.mark.parametrize("shares", [(), (1, 1, 1, 1), (1, 0, 0, 1), (0, 0, 1, 0)])
@pytest.mark.parametrize("frozen", [True, False])
def test_who_freezes_or_dies_is_named_by_all(
    swarm_of: Callable[..., Swarm], frozen: bool, shares: tuple[int, ...]
) -> None:
    swarm, parts, over = swarm_of(4, shares), sources(4, ELEMENTS), threading.Event()

    def work(rank: int) -> Tensor:
        if rank != 2:
            return swarm.member(rank, parts[rank], ELEMENTS, silence_s=SILENCE_S)
        channels = swarm.open_all(rank)
        if not shares and not frozen:
            channels.left[0].recv_header(1 << 20, Patience(SOON))  # the ring is under way
        if frozen:
            assert over.wait(SOON)
        channels.close()
        return parts[rank]

    futures = swarm.start(work)
    reason = Reason.TIMEOUT if frozen else Reason.RING_BROKEN
    try:
        for rank in (0, 1, 3):
            failure = broken(futures[rank])
            assert (failure.suspect, failure.reason) == (swarm.order[2], reason)
    finally:
        over.set()


def test_no_thread_outlives_a_ring_that_got_too_few(
    swarm_of: Callable[[str, int], Swarm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write into a buffer that the next ring may have by then."""
    swarm, start, started = swarm_of(2), threading.Thread.start, list[threading.Thread]()

    def start_one(thread: threading.Thread) -> None:
        if thread.name == "atom-all-reduce":
            if started:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    other = swarm.pool.submit(swarm.open, 1)
    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(ExchangeBroken, match="new thread") as failure:
        swarm.member(0, sources(1, 100_000)[0], 100_000)
    assert failure.value.suspect == swarm.order[0]
    assert [thread.is_alive() for thread in started] == [False]
    for channel in other.result(SOON):
        channel.close()


def test_who_has_said_something_is_through_with_opening(
    swarm_of: Callable[..., Swarm],
) -> None:
    """Its silence afterwards is a frozen member's, however long others may take to open."""
    swarm, parts = swarm_of(3), sources(3, 100_000)
    over = threading.Event()

    def work(rank: int) -> Tensor:
        if rank != 2:
            bounds = {"silence_s": SILENCE_S, "opening_s": 100 * SOON}
            return swarm.member(rank, parts[rank], 100_000, **bounds)
        left, right = swarm.open(rank)
        right.send_frame(Kind.WAITING, patience=Patience(SOON))
        assert over.wait(SOON)
        left.close()
        right.close()
        return parts[rank]

    futures = swarm.start(work)
    failure = broken(futures[0])
    over.set()
    assert failure.suspect == swarm.order[2]
    assert failure.reason is Reason.TIMEOUT
    assert broken(futures[1]).suspect == swarm.order[2]


def test_cancelling_ends_the_ring_for_all(swarm_of: Callable[..., Swarm]) -> None:
    swarm, parts = swarm_of(3), sources(3, 100_000)
    cancelled = threading.Event()

    def work(rank: int) -> Tensor:
        if rank == 0:
            return swarm.member(rank, parts[rank], 100_000, cancelled=cancelled, silence_s=SOON)
        if rank == 1:
            return swarm.member(rank, parts[rank], 100_000, silence_s=SOON)
        channels = swarm.open(rank)  # stands still: only the cancellation can end this
        cancelled.set()
        futures[0].exception(SOON)
        futures[1].exception(SOON)
        for channel in channels:
            channel.close()
        return parts[rank]

    ready = threading.Event()
    futures: list[Future[Tensor]] = []

    def gated(rank: int) -> Tensor:
        assert ready.wait(SOON)
        return work(rank)

    futures += swarm.start(gated)
    ready.set()
    assert broken(futures[0]).reason is Reason.SUPERSEDED
    assert broken(futures[1]).reason is Reason.SUPERSEDED
    futures[2].result(SOON)


def test_chunks_of_another_attempt_are_malformed(swarm_of: Callable[..., Swarm]) -> None:
    swarm, parts = swarm_of(2), sources(2, 4096)
    stale = ring_tag(b"q" * 32, swarm.ballot)

    def work(rank: int) -> Tensor:
        return swarm.member(rank, parts[rank], 4096, tag=stale if rank else None)

    failures = [broken(future) for future in swarm.start(work)]
    assert {failure.reason for failure in failures} == {Reason.MALFORMED}


@pytest.mark.parametrize("shares", [(), (1, 1)])
@pytest.mark.parametrize("field", ["attempt", "hop", "start", "length", "kind"])
def test_a_wrong_header_is_malformed_and_blames_the_sender(
    swarm_of: Callable[..., Swarm], field: str, shares: tuple[int, ...]
) -> None:
    swarm, part = swarm_of(2, shares), sources(1, 4096)[0]
    plan = swarm.plan(4096)
    future = swarm.pool.submit(swarm.member, 0, part, 4096)
    left, right = swarm.open(1)
    step = next(plan.sends(1) if isinstance(plan, RingPlan) else plan.stream(1, 0))
    header = bytearray(chunk_header(swarm.terms(1).tag, step))
    places = {"attempt": 0, "hop": 10, "start": 18}
    if field in places:
        header[places[field]] ^= 1
    kind = Kind.MESSAGE if field == "kind" else Kind.CHUNK
    size = 4 * (step.stop - step.start) - (4 if field == "length" else 0)
    right.send_frame(kind, bytes(header), bytes(size), patience=Patience(SOON))
    failure = broken(future)
    assert (failure.reason, failure.suspect) == (Reason.MALFORMED, swarm.order[1])
    left.close()
    right.close()
