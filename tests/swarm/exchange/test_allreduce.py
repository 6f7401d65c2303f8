"""Rings of real threads over loopback and memory: equal bytes everywhere."""

from collections.abc import Callable

import pytest
import torch
from threaded_ring import SOON, Swarm, sources, swarm_of
from torch import Tensor

from atom.config.run_file import CODECS
from atom.swarm.chain.commit import Ballot
from atom.swarm.exchange.codec import Codec, codec_named

__all__ = ["swarm_of"]


@pytest.mark.parametrize("codec", list(map(codec_named, CODECS)), ids=CODECS)
@pytest.mark.parametrize(
    ("size", "elements", "shares"),
    [(2, 100_000, ()), (3, 100_000, ()), (4, 100_000, ()),
     (2, 16, ()), (3, 32, ()), (5, 70_016, ()), (1, 4096, ()),
     (3, 200_000, (1, 1, 1)), (2, 200_000, (3, 0)),
     (5, 200_000, (0, 1, 7, 2, 0))],
)  # fmt: skip
def test_all_members_get_the_same_mean(
    swarm_of: Callable[..., Swarm],
    size: int,
    elements: int,
    shares: tuple[int, ...],
    codec: Codec,
) -> None:
    swarm, parts = swarm_of(size, shares), sources(size, elements)
    kept = [part.clone() for part in parts]
    work = swarm.start(lambda rank: swarm.member(rank, parts[rank], elements, codec))
    results = [future.result(SOON) for future in work]
    exact = sum(part.double() for part in parts) / 64
    tolerance = {"float32": 1e-6, "bfloat16": 2e-2, "int8": 4e-2}[codec.name]
    for result in results:
        assert torch.equal(result, results[0])
        torch.testing.assert_close(
            result.double(), exact, rtol=tolerance, atol=tolerance * size / 40
        )
    assert all(torch.equal(part, copy) for part, copy in zip(parts, kept, strict=True))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sources_in_sixteen_bits_count_as_what_they_say(
    swarm_of: Callable[..., Swarm], size: int
) -> None:
    swarm, parts = swarm_of(size), [p.bfloat16() for p in sources(size, 50_000)]

    def reduced(parts: list[Tensor]) -> list[Tensor]:
        work = swarm.start(lambda rank: swarm.member(rank, parts[rank], 50_000))
        return [future.result(SOON) for future in work]

    wide = [part.float() for part in parts]
    for narrow, expected in zip(reduced(parts), reduced(wide), strict=True):
        assert torch.equal(narrow, expected)


@pytest.mark.parametrize("size", [2, 3])
def test_every_element_is_told_of_once_when_it_is_final(
    swarm_of: Callable[..., Swarm], size: int
) -> None:
    swarm, parts = swarm_of(size), sources(size, 100_000)
    told: list[list[tuple[int, Tensor]]] = [[] for _ in range(size)]

    def member(rank: int) -> Tensor:
        def landed(result: Tensor) -> Callable[[int, int], None]:
            return lambda start, stop: told[rank].append((start, result[start:stop].clone()))

        codec = codec_named("bfloat16")
        return swarm.member(rank, parts[rank], 100_000, codec, landed=landed)

    results = [future.result(SOON) for future in swarm.start(member)]
    for pieces, result in zip(told, results, strict=True):
        pieces.sort(key=lambda piece: piece[0])
        assert torch.equal(torch.cat([piece for _, piece in pieces]), result)


def test_a_member_without_gradients_passes_zeros(swarm_of: Callable[..., Swarm]) -> None:
    swarm, parts = swarm_of(3), sources(3, 20_000)
    work = swarm.start(lambda rank: swarm.member(rank, None if rank == 1 else parts[rank], 20_000))
    results = [future.result(SOON) for future in work]
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], (parts[0] + parts[2]) / 64)


@pytest.mark.parametrize(("size", "shares"), [(1, ()), (2, ()), (3, ()), (5, ()), (3, (2, 1, 0))])
def test_what_rounding_takes_away_is_kept_for_the_next_round(
    swarm_of: Callable[..., Swarm], size: int, shares: tuple[int, ...]
) -> None:
    """Result · weight + everybody's residuals = the exact sum: nothing is lost for good."""
    swarm, parts, elements = swarm_of(size, shares), sources(size, 50_000), 50_000
    residuals = [torch.full((elements,), float("nan")) for _ in range(size)]
    work = swarm.start(
        lambda rank: swarm.member(
            rank, parts[rank], elements, codec_named("int8"), residual=residuals[rank]
        )
    )
    results = [future.result(SOON) for future in work]
    exact = sum(part.double() for part in parts)
    kept = sum(residual.double() for residual in residuals)
    torch.testing.assert_close(results[0].double() * 64 + kept, exact, rtol=1e-5, atol=1e-5)
    assert max(residual.abs().max() for residual in residuals) > 1e-3, "there was something to keep"


def test_rounds_with_feedback_come_closer_to_the_sum_of_all_gradients(
    swarm_of: Callable[..., Swarm],
) -> None:
    parts, rounds, elements = sources(3, 20_000), 12, 20_000

    def drift(feedback: bool) -> float:
        swarm, total = swarm_of(3), torch.zeros(elements, dtype=torch.float64)
        residuals = [torch.zeros(elements) for _ in parts]
        for number in range(rounds):
            swarm.ballot = Ballot(number, swarm.order[0], bytes(16))
            given = [
                part + residual if feedback else part
                for part, residual in zip(parts, residuals, strict=True)
            ]
            fresh = [torch.empty(elements) for _ in parts]
            work = swarm.start(
                lambda rank, given=given, fresh=fresh: swarm.member(  # type: ignore[misc]
                    rank, given[rank], elements, codec_named("int8"), residual=fresh[rank]
                )
            )
            total += work[0].result(SOON).double() * 64
            for future in work:
                future.result(SOON)
            residuals = fresh
        exact = rounds * sum(part.double() for part in parts)
        return float((total - exact).norm() / exact.norm())

    assert drift(feedback=True) < drift(feedback=False) / 4


@pytest.mark.parametrize("codec", list(map(codec_named, CODECS)), ids=CODECS)
def test_codecs_are_idempotent(codec: Codec) -> None:
    values = torch.cat([torch.randn(1000) * 10.0**power for power in range(-38, 38)])
    scratch = torch.empty(4 * values.numel(), dtype=torch.uint8)
    decoded = torch.empty_like(values)
    once = codec.encode(values, scratch).clone()
    assert once.numel() == codec.wire_bytes(values.numel())
    codec.decode(once, decoded)
    assert torch.equal(codec.encode(decoded, scratch), once)
