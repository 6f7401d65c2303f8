"""Numbers that no ring may let through: not finite, absurd, or not written as others would."""

from collections.abc import Callable

import pytest
import torch
from threaded_ring import SOON, Swarm, broken, sources, swarm_of
from torch import Tensor

from atom.base.reasons import Reason
from atom.config.run_file import CODECS
from atom.swarm.exchange.allreduce import (
    ExchangeBroken,
)
from atom.swarm.exchange.codec import Codec, Float32, Int8, codec_named
from atom.swarm.exchange.reduction import LARGEST_PART

__all__ = ["swarm_of"]


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize(
    ("shares", "poison"), [((), float("nan")), ((), float("inf")), ((1, 0, 1), float("nan"))]
)
def test_a_member_with_bad_numbers_is_named_by_all(
    swarm_of: Callable[..., Swarm], culprit: int, shares: tuple[int, ...], poison: float
) -> None:
    swarm, parts = swarm_of(3, shares), sources(3, 60_000)
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
@pytest.mark.parametrize(
    ("honest", "culprit", "reason"),
    [(Float32, Liar, Reason.NOT_FINITE), (Int8, Roundabout, Reason.MALFORMED)],
)
def test_a_mean_that_was_spoilt_on_its_way_names_who_passed_it_on(
    swarm_of: Callable[..., Swarm],
    size: int,
    honest: type[Codec],
    culprit: Callable[[int], Codec],
    reason: Reason,
) -> None:
    swarm, parts = swarm_of(size), sources(size, 16 * size)
    codecs = [honest(), culprit(size), honest()]
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], 16 * size, codecs[rank]))
    for future in (*work[:1], *work[2:]):
        failure = broken(future)
        assert (failure.suspect, failure.reason) == (swarm.order[1], reason)


def test_whose_own_numbers_are_absurd_names_itself(swarm_of: Callable[..., Swarm]) -> None:
    swarm, parts = swarm_of(3), sources(3, 60_000)
    parts[1].fill_(1e31)
    for future in swarm.start(lambda rank: swarm.member(rank, parts[rank], 60_000)):
        failure = broken(future)
        assert (failure.suspect, failure.reason) == (swarm.order[1], Reason.NOT_FINITE)


@pytest.mark.parametrize("codec", list(map(codec_named, CODECS)), ids=CODECS)
@pytest.mark.parametrize("size", [2, 5])
def test_the_largest_numbers_pass(swarm_of: Callable[..., Swarm], size: int, codec: Codec) -> None:
    swarm, part = swarm_of(size), torch.full((4096,), LARGEST_PART)
    for future in swarm.start(lambda rank: swarm.member(rank, part, 4096, codec)):
        assert torch.isfinite(future.result(SOON)).all()


def test_a_lone_member_refuses_bad_numbers(swarm_of: Callable[..., Swarm]) -> None:
    swarm = swarm_of(1)
    with pytest.raises(ExchangeBroken) as failure:
        swarm.member(0, torch.full((64,), float("nan")), 64)
    assert (failure.value.suspect, failure.value.reason) == (swarm.order[0], Reason.NOT_FINITE)
