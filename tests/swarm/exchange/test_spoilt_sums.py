"""Numbers that no ring may let through: not finite, absurd, or not written as others would."""

from collections.abc import Callable

import pytest
import torch
from threaded_ring import SOON, Swarm, broken, sources, swarm_of
from torch import Tensor

from atom.base.reasons import Reason
from atom.swarm.exchange.algorithm import Algorithm
from atom.swarm.exchange.allreduce import (
    RingBroken,
)
from atom.swarm.exchange.codec import CODECS, Codec, Float32, Int8
from atom.swarm.exchange.sum_limits import LARGEST_PART, SumLimits

__all__ = ["swarm_of"]


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_member_with_bad_numbers_is_named_by_all(
    swarm_of: Callable[[str, int], Swarm], culprit: int, poison: float
) -> None:
    swarm, parts = swarm_of("local", 3), sources(3, 60_000)
    parts[culprit][31_000] = poison
    for future in swarm.start(lambda rank: swarm.member(rank, parts[rank], 60_000)):
        failure = broken(future)
        assert failure.reason is Reason.NOT_FINITE
        assert failure.suspect == swarm.order[culprit]


class Liar(Float32):
    """Sums honestly, and passes on its share of the mean as something else."""

    def __init__(self, members: int) -> None:
        self._truths = members  # what goes on to the right while summing, and its own last touch

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        self._truths -= 1
        return super().encode(values if self._truths >= 0 else values * float("nan"), scratch)


@pytest.mark.parametrize("size", [2, 3])
def test_a_mean_that_was_spoilt_on_its_way_names_who_passed_it_on(
    swarm_of: Callable[[str, int], Swarm], size: int
) -> None:
    swarm, parts = swarm_of("local", size), sources(size, 16 * size)
    codecs = [Float32(), Liar(size), Float32()]
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], 16 * size, codecs[rank]))
    for honest in (*work[:1], *work[2:]):
        failure = broken(honest)
        assert (failure.suspect, failure.reason) == (swarm.order[1], Reason.NOT_FINITE)


class Roundabout(Int8):
    """Sums honestly, and writes its share of the mean with twice the scale and half the steps."""

    def __init__(self, members: int) -> None:
        self._truths = members

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        wire = super().encode(values, scratch, lost)
        self._truths -= 1
        if self._truths < 0:
            wire[:2].view(torch.int16).add_(0x80)
            wire[2:].view(torch.int8).div_(2, rounding_mode="trunc")
        return wire


@pytest.mark.parametrize("size", [2, 3])
def test_a_mean_that_the_next_would_write_otherwise_names_who_wrote_it(
    swarm_of: Callable[[str, int], Swarm], size: int
) -> None:
    swarm, parts = swarm_of("local", size), sources(size, 16 * size)
    codecs = [Int8(), Roundabout(size), Int8()]
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], 16 * size, codecs[rank]))
    for honest in (*work[:1], *work[2:]):
        failure = broken(honest)
        assert (failure.suspect, failure.reason) == (swarm.order[1], Reason.MALFORMED)


class Exaggerator(Float32):
    """Passes on what is finite, and too large to be honest."""

    def __init__(self, number: float, truths: int = 0) -> None:
        self._number, self._truths = number, truths

    def encode(self, values: Tensor, scratch: Tensor, lost: Tensor | None = None) -> Tensor:
        self._truths -= 1
        if self._truths >= 0:
            return super().encode(values, scratch)
        return super().encode(torch.full_like(values, self._number), scratch)


USUAL = SumLimits(64.0)
"""Parts of numbers around one; a mean is a sixty-fourth of their sum."""


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize(
    ("culprit", "number", "limits"),
    [(0, 1.7e38, SumLimits()), (1, 1e20, USUAL), (2, 1e6, USUAL)],
)
def test_who_sends_absurd_numbers_is_named_by_all_however_finite(
    swarm_of: Callable[[str, int], Swarm],
    culprit: int,
    number: float,
    limits: SumLimits,
    algorithm: Algorithm,
) -> None:
    swarm, parts = swarm_of("local", 3), sources(3, 60_000)
    swarm.algorithm, swarm.limits = algorithm, limits
    codecs = [Exaggerator(number) if rank == culprit else Float32() for rank in range(3)]
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], 60_000, codecs[rank]))
    for rank in {0, 1, 2} - {culprit}:
        failure = broken(work[rank])
        assert (failure.suspect, failure.reason) == (swarm.order[culprit], Reason.NOT_FINITE)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_who_gives_an_absurd_mean_to_all_is_named(
    swarm_of: Callable[[str, int], Swarm], algorithm: Algorithm
) -> None:
    swarm, parts = swarm_of("local", 3), sources(3, 48)
    swarm.algorithm, swarm.limits = algorithm, USUAL
    codecs = [Exaggerator(1e6, truths=2) if rank == 1 else Float32() for rank in range(3)]
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], 48, codecs[rank]))
    for honest in (work[0], work[2]):
        failure = broken(honest)
        assert (failure.suspect, failure.reason) == (swarm.order[1], Reason.NOT_FINITE)


def test_whose_own_numbers_are_absurd_names_itself(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm, parts = swarm_of("local", 3), sources(3, 60_000)
    parts[1].fill_(1e31)
    for future in swarm.start(lambda rank: swarm.member(rank, parts[rank], 60_000)):
        failure = broken(future)
        assert (failure.suspect, failure.reason) == (swarm.order[1], Reason.NOT_FINITE)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())
@pytest.mark.parametrize(("size", "largest"), [(2, LARGEST_PART), (5, LARGEST_PART), (3, 64.0)])
def test_the_largest_honest_numbers_pass(
    swarm_of: Callable[[str, int], Swarm], size: int, largest: float, codec: Codec
) -> None:
    swarm = swarm_of("local", size)
    swarm.limits = SumLimits(largest)
    part = torch.full((4096,), largest)
    for future in swarm.start(lambda rank: swarm.member(rank, part, 4096, codec)):
        assert torch.isfinite(future.result(SOON)).all()


def test_a_lone_member_refuses_bad_numbers(swarm_of: Callable[[str, int], Swarm]) -> None:
    swarm = swarm_of("local", 1)
    with pytest.raises(RingBroken) as failure:
        swarm.member(0, torch.full((64,), float("nan")), 64)
    assert (failure.value.suspect, failure.value.reason) == (swarm.order[0], Reason.NOT_FINITE)
