"""Gradients that leave in bfloat16: what arrives, against plain tensor arithmetic, bit for bit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_rig import EngineRig
from hand_written_program import FINEST, HALVES, WHOLE, batches, compile_by_hand
from rounded_sums import rounded_sum
from torch import Tensor

from atom.swap.device import CpuDevice
from atom.swap.host_store import HostStore
from atom.swap.host_sums import Gate, HostSum, NotFinite
from atom.swap.parameter_gradients import rounded

CUTS = pytest.mark.parametrize("cut", [FINEST, HALVES, WHOLE], ids=["finest", "halves", "whole"])
SEEDS = (11, 12)


class Onlooker(CpuDevice):
    """Device that records the sums that leave, and their offsets in the arena."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[list[tuple[int, Tensor]]] = []

    def gradients_out(self, gradient_slot: int, sums: Sequence[HostSum], *rest: Any) -> None:
        self.left.append([(s.destination.storage_offset(), s.source.clone()) for s in sums])
        super().gradients_out(gradient_slot, sums, *rest)


def new_rig(cut: Sequence[Sequence[str]], device: CpuDevice | None = None) -> EngineRig:
    narrow = torch.bfloat16
    return EngineRig(cut, narrow, device, gradients=narrow)


def expected_arena(rig: EngineRig, passes: Sequence[list[list[tuple[int, Tensor]]]]) -> Tensor:
    """Return the arena that the rules define.

    The first sum of a round is stored as it is. Later sums are added with stochastic rounding, with
    noise of the pass and the sub-model.
    """
    arena = torch.zeros_like(rig.store.gradients)
    filled = torch.zeros(arena.numel(), dtype=torch.bool)
    for number, left in enumerate(passes):
        for sub_model, parts in zip(reversed(range(len(left))), left, strict=True):
            for start, sums in parts:
                place = slice(start, start + sums.numel())
                arriving = sums
                if filled[place].any():
                    key = SEEDS[number] + sub_model * 0x9E3779B97F4A7C15
                    arriving = rounded_sum(arena[place], arriving, start, key % 2**64)
                arena[place], filled[place] = arriving, True
    assert filled.all()
    return arena


@CUTS
def test_the_arena_is_what_the_rules_say(cut: Sequence[Sequence[str]]) -> None:
    device = Onlooker()
    rig, passes = new_rig(cut, device), []
    for number, seed in enumerate(SEEDS):
        data = batches([2, 3], seed=number)
        rig.engine.run_pass(data, [seed, 99], first=number == 0)
        passes.append(device.left)
        device.left = []
    assert rig.store.gradients.dtype == torch.bfloat16
    assert torch.equal(rig.store.gradients, expected_arena(rig, passes))


def test_the_uses_of_a_tied_weight_meet_in_the_arena() -> None:
    """The sum does not return to the device in 16 bits."""
    device = Onlooker()
    rig = EngineRig(FINEST, torch.bfloat16, device)
    tied = rig.program.layout.by_name["embed.weight"]
    for number in range(2):
        before = rig.store.gradients[: tied.numel].clone()
        rig.engine.run_pass(batches([2, 3], seed=number), SEEDS)
        (head, embedding) = (
            next(sums for start, sums in left if start == tied.offset)[: tied.numel]
            for left in (device.left[0], device.left[-1])
        )
        assert torch.equal(rig.store.gradients[: tied.numel], before + head + embedding)
        device.left = []


def test_sums_are_rounded_to_nearest_before_they_leave() -> None:
    """One behind the other: the memory they were summed in is free for the next."""
    sums, arena = torch.rand(48), torch.zeros(64).bfloat16()
    wanted = [HostSum(arena[:16], sums[32:], False, 5, 0), HostSum(arena[32:], sums[:32], True)]
    slot = torch.zeros(64).bfloat16()
    found, expected = rounded(wanted, slot), [sums[32:].bfloat16(), sums[:32].bfloat16()]
    sums.zero_()
    for part, before, source in zip(found, wanted, expected, strict=True):
        assert torch.equal(part.source, source)
        assert part == replace(before, source=part.source)
    assert torch.equal(slot[:48], torch.cat(expected))


def test_what_rounding_makes_infinite_is_turned_away() -> None:
    device, arena = CpuDevice(), torch.ones(16).bfloat16()
    source = torch.zeros(16)
    source[3] = 3.4e38  # a float32, but above bfloat16's largest number
    gate, slot = Gate(), torch.zeros(16).bfloat16()
    wide = HostSum(arena, source, replace=False, noise_key=1)
    device.gradients_out(0, rounded([wide], slot), gate, None, None)
    with pytest.raises(NotFinite):
        device.wait_gradients_out(0)
    assert torch.equal(arena, torch.ones(16).bfloat16())
    assert not gate.touched


@pytest.mark.parametrize("precision", [torch.float32, torch.float16])
def test_they_go_with_bfloat16_only(precision: torch.dtype) -> None:
    layout = compile_by_hand(FINEST, 0.0)[0].layout
    with pytest.raises(ValueError, match="gradients in"):
        HostStore.allocate(layout, precision, gradients=torch.bfloat16)
