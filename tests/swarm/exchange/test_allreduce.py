"""Exchanges of real threads over loopback and memory: equal bytes everywhere, in both kinds."""

import threading

import pytest
import torch

from atom.config.run_file import CODECS
from atom.swarm.exchange.codec import Codec, codec_named
from atom.swarm.exchange.reduction import LARGEST_PART
from atom.swarm.stream.frames import Pace, Purpose
from tests.swarm.threaded_ring import ELEMENTS, SILENCE_S, SOON, Make, sources


def by_parts(codec: Codec, size: int) -> tuple[int, ...]:
    """Shares for a codec that cannot be used in a ring; no shares for others."""
    return () if codec.fixed_size else (1,) * size


@pytest.mark.parametrize("codec", list(map(codec_named, CODECS)), ids=CODECS)
@pytest.mark.parametrize(
    ("size", "elements", "shares"),
    [(1, 4096, ()), (2, 16, ()), (2, 48_000, ()), (3, 32, ()), (4, 48_000, ()), (5, 70_016, ()),
     (2, 48_000, (3, 0)), (3, 48_000, (1, 1, 1)), (5, 70_016, (0, 1, 7, 2, 0))],
)  # fmt: skip
def test_all_members_get_the_same_mean(
    swarm_of: Make, size: int, elements: int, shares: tuple[int, ...], codec: Codec
) -> None:
    """The pace is the slowest possible. The members keep `given_back` of the encoding error:
    mean · weight + the errors of all members = the exact sum."""
    swarm, parts = swarm_of(size, shares or by_parts(codec, size)), sources(size, elements)
    kept, exact = [part.clone() for part in parts], sum(part.double() for part in parts)
    residuals = [torch.full((elements,), float("nan")) for _ in parts]
    first = swarm.average(parts, residuals, codec=codec, pace=Pace(SOON, 1.0))
    accurate = {"float32": 1e-6, "bfloat16": 2e-2, "int8": 4e-2, "int4": 0.6, "sparse": None}
    tolerance = accurate[codec.name]
    if tolerance is not None:
        atol = tolerance * size / 40
        torch.testing.assert_close(first.double(), exact / 64, rtol=tolerance, atol=atol)
    assert all(torch.equal(part, copy) for part, copy in zip(parts, kept, strict=True))
    lost, share = sum(residual.double() for residual in residuals), codec.given_back
    lacking = exact - first.double() * 64
    torch.testing.assert_close(lost, lacking * share, rtol=1e-5, atol=1e-4 if share else 0.0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sources_in_sixteen_bits_count_as_what_they_say(swarm_of: Make, size: int) -> None:
    swarm, parts = swarm_of(size), [p.bfloat16() for p in sources(size, ELEMENTS)]
    assert torch.equal(swarm.average(parts), swarm.average([part.float() for part in parts]))


@pytest.mark.parametrize("shares", [(), (1, 1, 1)])
def test_a_member_without_gradients_passes_zeros(swarm_of: Make, shares: tuple[int, ...]) -> None:
    one, _, three = sources(3, ELEMENTS)
    mean = swarm_of(3, shares).average([one, None, three])
    torch.testing.assert_close(mean, (one + three) / 64)


def test_parts_are_added_in_a_fixed_order(swarm_of: Make) -> None:
    """The owner adds the numbers of the ranks after its own in order: the same bits in all runs."""
    parts = sources(3, ELEMENTS)
    mean = swarm_of(3, (0, 1, 0)).average(parts)
    assert torch.equal(mean, (parts[1] + parts[2] + parts[0]) / 64)


def test_parts_nobody_dials_a_member_without_one(swarm_of: Make) -> None:
    swarm = swarm_of(4, (1, 0, 2, 0))
    for transport in swarm.transports:
        for hidden in (1, 3):
            transport.set_addresses(swarm.order[hidden], [])
    swarm.average(sources(4, ELEMENTS))


@pytest.mark.parametrize("codec", list(map(codec_named, CODECS)), ids=CODECS)
@pytest.mark.parametrize("size", [2, 5])
def test_the_largest_numbers_pass(swarm_of: Make, size: int, codec: Codec) -> None:
    parts = [torch.full((4096,), LARGEST_PART)] * size
    swarm = swarm_of(size, by_parts(codec, size))
    assert torch.isfinite(swarm.average(parts, codec=codec)).all()


def test_who_is_long_in_opening_is_not_taken_for_frozen(
    swarm_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last reaches the first only after a while; the others' connections stand."""
    swarm = swarm_of(3)
    connect = swarm.transports[2].connect

    def slowly(peer_id: str, purpose: Purpose, tag: bytes, timeout_s: float) -> object:
        threading.Event().wait(2.5 * SILENCE_S)
        return connect(peer_id, purpose, tag, timeout_s)

    monkeypatch.setattr(swarm.transports[2], "connect", slowly)
    swarm.average(sources(3, 1 << 20), progress_timeout_s=SILENCE_S, opening_s=4 * SILENCE_S)
