"""Parts with owners: the plan alone, then real threads and connections."""

import random
import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threaded_ring import SOON, Swarm, broken, sources, swarm_of
from torch import Tensor

from atom.base.reasons import Reason
from atom.config.run_file import CODECS
from atom.swarm.exchange.allreduce import ExchangeBroken
from atom.swarm.exchange.codec import Codec, codec_named
from atom.swarm.exchange.plans import ALIGNMENT, BUCKET_BYTES, WINDOW, PartsPlan, chunk_header
from atom.swarm.stream.frames import Kind, Patience

__all__ = ["swarm_of"]

ELEMENTS = 200_000
SHARES = st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(any).map(tuple)
PLANS = st.builds(
    PartsPlan,
    elements=st.integers(0, 40).map(lambda n: n * ALIGNMENT),
    shares=SHARES,
    bucket_elements=st.integers(1, 12).map(lambda n: n * ALIGNMENT),
    chunk_elements=st.integers(1, 3).map(lambda n: n * ALIGNMENT),
)


@given(PLANS)
@settings(max_examples=60, deadline=None)
def test_plan_parts_are_aligned_cover_the_arena_once_and_belong_to_owners(plan: PartsPlan) -> None:
    covered = []
    for bucket in range(-(-plan.elements // plan.bucket_elements)):
        for rank, share in enumerate(plan.shares):
            chunks = list(plan.chunks(bucket, rank))
            assert share or not chunks
            assert len(chunks) <= plan.owned_chunks
            for _, start, stop in chunks:
                assert start % ALIGNMENT == stop % ALIGNMENT == 0
                covered += range(start, stop)
    assert covered == list(range(plan.elements))


@given(PLANS, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_plan_every_part_is_summed_once_and_nothing_waits_for_ever(
    plan: PartsPlan, dice: random.Random
) -> None:
    """Runs all members in any order of events, with bitmaps instead of numbers."""
    everybody = (1 << plan.members) - 1
    streams = {
        (rank, peer): list(plan.stream(rank, peer))
        for rank in range(plan.members)
        for peer in plan.peers(rank)
    }
    final: list[set[int]] = [set() for _ in range(plan.members)]
    held: list[dict[int, tuple[int, int]]] = [{} for _ in range(plan.members)]
    sums: list[dict[int, int]] = [{} for _ in range(plan.members)]
    while any(streams.values()):
        able = [
            key
            for key, steps in streams.items()
            if steps and (steps[0].needs is None or steps[0].needs in final[key[0]])
        ]
        rank, peer = dice.choice(able)
        step = streams[rank, peer].pop(0)
        number = step.number
        if step.gather:
            assert step.contributors == everybody
            assert sums[rank][plan.slot(number)] == number, "the sum is still there to be sent"
            final[peer].add(number)
            continue
        slot, before = plan.slot(number), plan.before(number)
        assert slot < WINDOW * plan.owned_chunks
        assert before is None or before in final[peer]
        name, parts = held[peer].pop(slot, (number, 1 << peer))
        assert (name, parts & step.contributors) == (number, 0), "nothing else is held there"
        if parts | step.contributors == everybody:
            final[peer].add(number)
            sums[peer][slot] = number
        else:
            held[peer][slot] = number, parts | step.contributors
    buckets = range(-(-plan.elements // plan.bucket_elements))
    chunks = sum(len(list(plan.chunks(b, rank))) for b in buckets for rank in range(plan.members))
    assert [len(numbers) for numbers in final] == [chunks] * plan.members
    assert not any(held)


@given(st.lists(st.integers(0, 100), min_size=2, max_size=40).filter(any).map(tuple))
def test_plan_no_owner_holds_more_than_a_window_of_buckets(shares: tuple[int, ...]) -> None:
    plan = PartsPlan.usual(10 * BUCKET_BYTES, shares)
    largest = sum(stop - start for _, start, stop in plan.chunks(0, shares.index(max(shares))))
    least = 4 * ALIGNMENT * len(shares) ** 2
    assert 4 * largest * len(shares) <= max(BUCKET_BYTES, least) + 4 * ALIGNMENT * len(shares)


def reduced(swarm: Swarm, parts: list[Tensor], codec: Codec | None = None) -> list[Tensor]:
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], ELEMENTS, codec))
    return [future.result(SOON) for future in work]


@pytest.mark.parametrize("codec", list(map(codec_named, CODECS)), ids=CODECS)
@pytest.mark.parametrize(
    ("kind", "shares"), [("tcp", (1, 1, 1)), ("local", (3, 0)), ("local", (0, 1, 7, 2, 0))]
)
def test_parts_all_members_get_the_same_mean(
    swarm_of: Callable[[str, int], Swarm], kind: str, shares: tuple[int, ...], codec: Codec
) -> None:
    size = len(shares)
    swarm, parts = swarm_of(kind, size), sources(size, ELEMENTS)
    swarm.shares = shares
    results = reduced(swarm, parts, codec)
    exact = sum(part.double() for part in parts) / 64
    tolerance = {"float32": 1e-6, "bfloat16": 2e-2, "int8": 4e-2}[codec.name]
    for result in results:
        assert torch.equal(result, results[0])
        torch.testing.assert_close(
            result.double(), exact, rtol=tolerance, atol=tolerance * size / 40
        )


def test_parts_are_added_in_a_fixed_order(swarm_of: Callable[[str, int], Swarm]) -> None:
    """Own numbers first, then those of the ranks after it: the same bits in every run."""
    swarm, parts = swarm_of("local", 3), sources(3, ELEMENTS)
    swarm.shares = (0, 1, 0)
    mean = (parts[1] + parts[2] + parts[0]) / 64
    assert torch.equal(reduced(swarm, parts)[0], mean)


def test_parts_keep_what_rounding_takes_away(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = swarm_of("local", 3), sources(3, ELEMENTS)
    swarm.shares = (2, 1, 0)
    residuals = [torch.full((ELEMENTS,), float("nan")) for _ in parts]
    work = swarm.start(
        lambda rank: swarm.member(
            rank, parts[rank], ELEMENTS, codec_named("int8"), residual=residuals[rank]
        )
    )
    results = [future.result(SOON) for future in work]
    kept = sum(residual.double() for residual in residuals)
    exact = sum(part.double() for part in parts)
    torch.testing.assert_close(results[0].double() * 64 + kept, exact, rtol=1e-5, atol=1e-5)


def test_parts_nobody_dials_a_member_without_one(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = swarm_of("tcp", 4), sources(4, ELEMENTS)
    swarm.shares = (1, 0, 2, 0)
    for transport in swarm.transports:
        for hidden in (1, 3):
            transport.set_addresses(swarm.order[hidden], [])
    results = reduced(swarm, parts)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_parts_bad_numbers_are_blamed_on_their_sender(
    swarm_of: Callable[[str, int], Swarm], culprit: int
) -> None:
    swarm, parts = swarm_of("local", 3), sources(3, ELEMENTS)
    swarm.shares = (1, 0, 1)
    parts[culprit][31_000] = float("nan")
    for future in swarm.start(lambda rank: swarm.member(rank, parts[rank], ELEMENTS)):
        failure = broken(future)
        assert (failure.suspect, failure.reason) == (swarm.order[culprit], Reason.NOT_FINITE)


@pytest.mark.parametrize("shares", [(1, 1, 1), (1, 0, 1), (0, 1, 0)])
@pytest.mark.parametrize("frozen", [True, False])
def test_parts_who_freezes_or_dies_is_named_by_all(
    swarm_of: Callable[[str, int], Swarm], frozen: bool, shares: tuple[int, ...]
) -> None:
    swarm, parts, over = swarm_of("tcp", 3), sources(3, ELEMENTS), threading.Event()
    swarm.shares = shares

    def work(rank: int) -> Tensor:
        if rank != 1:
            return swarm.member(rank, parts[rank], ELEMENTS, silence_s=0.5)
        channels = swarm.open_all(rank)
        if frozen:
            assert over.wait(SOON)
        channels.close()
        return parts[rank]

    futures = swarm.start(work)
    try:
        for rank in (0, 2):
            failure = broken(futures[rank])
            reason = Reason.TIMEOUT if frozen else Reason.RING_BROKEN
            assert (failure.suspect, failure.reason) == (swarm.order[1], reason)
    finally:
        over.set()


@pytest.mark.parametrize("spoilt", ["header", "kind", "length"])
def test_parts_malformed_bytes_name_their_sender(
    swarm_of: Callable[[str, int], Swarm], spoilt: str
) -> None:
    swarm, parts, over = swarm_of("local", 3), sources(3, ELEMENTS), threading.Event()
    swarm.shares = (1, 1, 1)
    plan = PartsPlan(ELEMENTS, swarm.shares, 48 * 1024, 4 * 1024)

    def work(rank: int) -> Tensor:
        if rank != 1:
            return swarm.member(rank, parts[rank], ELEMENTS, silence_s=SOON)
        channels = swarm.open_all(rank)
        step = next(plan.stream(rank, 2))
        header = bytearray(chunk_header(swarm.terms(rank).tag, step, 3))
        header[-1] ^= spoilt == "header"
        kind = Kind.MESSAGE if spoilt == "kind" else Kind.CHUNK
        body = bytes(4 * (step.stop - step.start) - (spoilt == "length"))
        channels.right[0].send_frame(kind, bytes(header), body, patience=Patience(SOON))
        assert over.wait(SOON)
        channels.close()
        return parts[rank]

    futures = swarm.start(work)
    try:
        failures = [broken(futures[rank]) for rank in (0, 2)]
        told = {(failure.suspect, failure.reason) for failure in failures}
        assert told == {(swarm.order[1], Reason.MALFORMED)}
    finally:
        over.set()


def test_parts_a_contribution_before_its_time_waits(swarm_of: Callable[[str, int], Swarm]) -> None:
    """Taken at once, it would be added in the place of one that is still under way."""
    swarm, parts = swarm_of("local", 3), sources(3, ELEMENTS)
    swarm.shares = (1, 1, 1)
    plan = PartsPlan(ELEMENTS, swarm.shares, 48 * 1024, 4 * 1024)
    over = threading.Event()

    def work(rank: int) -> Tensor:
        if rank != 1:
            return swarm.member(rank, parts[rank], ELEMENTS, silence_s=SOON)
        channels, tag = swarm.open_all(rank), swarm.terms(rank).tag
        for peer, channel in zip(plan.peers(rank), channels.right, strict=True):
            for step in plan.stream(rank, peer):
                header, zeros = chunk_header(tag, step, 3), bytes(4 * (step.stop - step.start))
                channel.send_frame(Kind.CHUNK, header, zeros, patience=Patience(SOON))
        assert over.wait(SOON)
        channels.close()
        return parts[rank]

    futures = swarm.start(work)
    result = futures[0].result(SOON)
    over.set()
    for bucket in range(-(-ELEMENTS // (48 * 1024))):
        for owner in (0, 2):
            for _, start, stop in plan.chunks(bucket, owner):
                honest = (parts[0] + parts[2])[start:stop] / 64
                torch.testing.assert_close(result[start:stop], honest)


@pytest.mark.parametrize("shares", [(1, 1, 1), (1, 0, 1)])
def test_parts_who_does_not_come_is_named(
    swarm_of: Callable[[str, int], Swarm], shares: tuple[int, ...]
) -> None:
    swarm = swarm_of("tcp", 3)
    swarm.shares = shares
    swarm.transports[1].close()
    with pytest.raises(ExchangeBroken) as failure:
        swarm.open_all(0, 0.2)
    assert failure.value.suspect in swarm.order[1:]
    assert shares[1] == 0 or failure.value.suspect == swarm.order[1]
