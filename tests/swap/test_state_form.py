"""Weights in two halves: no bit is lost, and the high one is the weight rounded to nearest."""

import pytest
import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.swap import host_store
from atom.swap.host_store import HostStore, StateForm, joined, round_to_bfloat16, split

LAYOUT = ParameterLayout.of({"a": (3, 7), "b": (5,)})


def every_kind_of_number() -> Tensor:
    """float32 of all exponents and signs: halves that tie, that are next to a tie, and others."""
    high = torch.arange(0, 2**16, 7, dtype=torch.int64) << 16
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int64)
    numbers = (high[:, None] + low).flatten().to(torch.int32).view(torch.float32)
    return numbers[numbers.isfinite()]


def halves_of(value: Tensor) -> tuple[Tensor, Tensor]:
    high = torch.zeros(value.shape, dtype=torch.bfloat16)
    low = torch.zeros(value.shape, dtype=torch.int16)
    split(value, high, low)
    return high, low


@pytest.mark.parametrize("at_a_time", [1000, 2**16])
def test_no_bit_is_lost(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_store, "_PIECE_ELEMENTS", at_a_time)
    numbers = torch.cat([every_kind_of_number(), torch.tensor([torch.inf, -torch.inf])])
    again = joined(*halves_of(numbers))
    assert torch.equal(again.view(torch.int32), numbers.view(torch.int32))


def test_the_high_half_is_nearest_and_ties_go_away_from_zero() -> None:
    numbers = every_kind_of_number()
    high, _ = halves_of(numbers)
    even = numbers.bfloat16()
    differs = high.view(torch.int16) != even.view(torch.int16)
    ties = (numbers.view(torch.int32) & 0xFFFF) == 0x8000
    assert bool((ties | ~differs).all())
    assert bool((high.double().abs() > numbers.double().abs())[ties].all())
    assert differs.any()


@pytest.mark.parametrize("form", StateForm)
def test_weights_read_back_as_they_were_written(form: StateForm) -> None:
    store = HostStore.allocate(LAYOUT, torch.bfloat16, form=form)
    version = store.version
    values = {spec.name: torch.randn(spec.shape) for spec in LAYOUT.specs}
    for name, value in values.items():
        store.write_weights(name, value)
    store.round_master()
    assert store.version > version
    for name, value in values.items():
        assert torch.equal(store.weights(name), value)
        assert torch.equal(LAYOUT.view(store.working, name), value.bfloat16())
    store.clear_state()
    assert not any(arena.any() for arena in store.state.values())
    with pytest.raises(ValueError, match=r"b: the shape \(2,\)"):
        store.write_weights("b", torch.zeros(2))


@pytest.mark.parametrize("precision", [torch.float32, torch.float16])
@pytest.mark.parametrize("form", [StateForm.SPLIT, StateForm.HALF])
def test_only_bfloat16_is_half_of_a_float32(form: StateForm, precision: torch.dtype) -> None:
    with pytest.raises(ValueError, match="bfloat16"):
        HostStore.allocate(LAYOUT, precision, form=form)


def test_a_rounded_number_is_the_nearest_and_of_two_the_even_one() -> None:
    numbers = every_kind_of_number()
    numbers = numbers[numbers.abs() < 3e38]
    rounded = torch.empty_like(numbers, dtype=torch.bfloat16)
    round_to_bfloat16(numbers, rounded)
    bits = numbers.view(torch.int32) & ~0xFFFF  # towards zero
    down, up = (each.view(torch.float32).double() for each in (bits, bits + 0x10000))
    below, above = (numbers.double() - down).abs(), (up - numbers.double()).abs()
    even = (bits >> 16) % 2 == 0
    nearest = torch.where((below < above) | ((below == above) & even), down, up)
    assert torch.equal(rounded.double(), nearest)
    assert (below == above).any()
