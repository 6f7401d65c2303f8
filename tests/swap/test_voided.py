"""Passes that go wrong: nothing that is not finite reaches the arena, the next pass is right."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from engine_rig import EngineRig
from hand_written_program import FINEST, HALVES, WHOLE, batches
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from atom.swap.device import CpuDevice
from atom.swap.host_sums import Gate, NotFinite, extremes
from atom.swap.voided import Cause, PassVoided, is_out_of_memory

CUTS = pytest.mark.parametrize("cut", [FINEST, HALVES, WHOLE], ids=["finest", "halves", "whole"])
ALLOCATOR = "[enforce fail at alloc_cpu.cpp:113] DefaultCPUAllocator: can't allocate memory: you"


def run(rig: EngineRig, seed: int = 0) -> list[float]:
    return rig.engine.run_pass(batches([2, 3], seed), [seed, seed + 1])


def assert_next_pass_is_right(rig: EngineRig) -> None:
    """Check that the next pass gives the bits of a new engine, once the arena is cleared."""
    fresh = EngineRig(rig.cut, rig.store.precision)
    rig.store.gradients.zero_()
    assert run(rig, 7) == run(fresh, 7)
    assert torch.equal(rig.store.gradients, fresh.store.gradients)
    assert rig.engine.touched


# --- numbers ----------------------------------------------------------------------------------


@CUTS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["block0.up.weight", "head.bias"])
def test_a_loss_that_is_not_finite_adds_nothing(
    cut: Sequence[Sequence[str]], name: str, bad: float
) -> None:
    rig = EngineRig(cut)
    run(rig)
    added = rig.store.gradients.clone()
    good = rig.parameter(name).clone()
    rig.parameter(name).fill_(bad)
    rig.store.round_master()
    with pytest.raises(PassVoided, match="micro-batch 0") as voided:
        run(rig)
    assert voided.value.cause is Cause.LOSS
    assert not rig.engine.touched
    assert torch.equal(rig.store.gradients, added)
    rig.parameter(name).copy_(good)
    rig.store.round_master()
    assert_next_pass_is_right(rig)


class BadGradient(torch.autograd.Function):
    """Changes nothing on the way forward, and spoils one element on the way back."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        spoilt = gradient.clone()
        spoilt.flatten()[-1] = math.nan
        return spoilt


def spoil(module_class: type[nn.Module], calls: set[int]) -> None:
    """The outputs of these calls (counted from 1) have bad gradients."""
    forward, count = module_class.forward, 0

    def spoiling(self: nn.Module, *inputs: Tensor) -> tuple[Tensor, ...]:
        nonlocal count
        count += 1
        outputs = forward(self, *inputs)
        return tuple(BadGradient.apply(o) for o in outputs) if count in calls else outputs

    module_class.forward = spoiling


@pytest.mark.parametrize(
    ("sub_model", "call", "is_added"),
    [(1, 3, True), (3, 1, False)],
    ids=["recomputed, so later sub-models' gradients were added before", "of the last sub-model"],
)
def test_a_bad_gradient_below_a_finite_loss_stops_there(
    sub_model: int, call: int, is_added: bool
) -> None:
    rig = EngineRig(FINEST)
    run(rig)
    added = rig.store.gradients.clone()
    spoil(rig.classes[sub_model], calls={call})
    with pytest.raises(PassVoided, match="loss is finite") as voided:
        run(rig)
    assert voided.value.cause is Cause.GRADIENTS
    assert rig.engine.touched is is_added
    assert torch.equal(rig.store.gradients, added) is not is_added
    assert torch.isfinite(rig.store.gradients).all()
    assert_next_pass_is_right(rig)


@pytest.mark.parametrize("exponents", [(6, 14), (10, 12)])
def test_peers_with_different_loss_scales_average_the_same(exponents: tuple[int, int]) -> None:
    """Scaling by a power of two is exact, but for what leaves float16's range at the bottom."""

    def averaged(scales: Sequence[float]) -> Tensor:
        total = torch.zeros(0)
        for peer, scale in enumerate(scales):
            rig = EngineRig(FINEST, torch.float16)
            rig.engine.loss_scale = scale
            run(rig, seed=peer)
            total = rig.store.gradients + total if peer else rig.store.gradients.clone()
        return total / (5 * len(scales))

    same = averaged([2.0**14] * 2)
    different = averaged([2.0**exponent for exponent in exponents])
    smallest = 2.0**-24 / 2.0 ** min(exponents)
    assert ((different - same).abs() <= 2.0**-10 * same.abs() + 100 * smallest).all()
    assert (different - same).norm() <= 2.0**-12 * same.norm()


def test_evaluation_tells_bad_losses_as_they_are() -> None:
    rig = EngineRig(FINEST)
    rig.parameter("head.bias").fill_(math.nan)
    rig.store.round_master()
    assert math.isnan(rig.engine.evaluate(batches([2]))[0])


@given(
    st.lists(st.lists(st.floats(width=32), max_size=20), max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_extremes_are_finite_if_everything_is(
    values: list[list[float]], dtype: torch.dtype
) -> None:
    tensors = [torch.tensor(value, dtype=dtype) for value in values]
    found = bool(torch.isfinite(extremes(tensors)).all())
    assert found == all(bool(torch.isfinite(t).all()) for t in tensors)


def test_a_gate_once_closed_stays_closed() -> None:
    gate = Gate()
    assert gate.admits(extremes([torch.ones(3)]), adds=False)
    assert not gate.touched
    with pytest.raises(NotFinite):
        gate.admits(extremes([torch.tensor([1.0, math.nan])]), adds=True)
    assert not gate.admits(extremes([torch.ones(3)]), adds=True)
    assert not gate.touched


# --- memory -----------------------------------------------------------------------------------


class ShortOfMemory(CpuDevice):
    """Runs out of memory at the n-th thing it is asked to do, in a lane's thread if it has one."""

    def __init__(self, failing: int, failure: Exception) -> None:
        super().__init__()
        self.asked, self._failing, self._failure = 0, failing, failure

    def _fails(self) -> bool:
        self.asked += 1
        return self.asked == self._failing

    def load(self, slot: int, *rest: Any) -> None:
        if self._fails():
            self._loads.submit(slot, self._raise)
        else:
            super().load(slot, *rest)

    def gradients_out(self, gradient_slot: int, *rest: Any) -> None:
        if self._fails():
            self._gradients.submit(gradient_slot, self._raise)
        else:
            super().gradients_out(gradient_slot, *rest)

    def wait_loaded(self, slot: int) -> None:
        if self._fails():
            self._raise()
        super().wait_loaded(slot)

    def _raise(self) -> None:
        raise self._failure


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_what_cuda_says_without_memory_is_known(said: str) -> None:
    assert is_out_of_memory(RuntimeError(said))
    assert not is_out_of_memory(ValueError(said))


FAILURES = [MemoryError(), RuntimeError(ALLOCATOR), torch.OutOfMemoryError("CUDA out of memory.")]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("failing", [1, 2, 5, 14, 23])
def test_out_of_memory_voids_the_pass_and_nothing_else(failing: int, failure: Exception) -> None:
    device, given_back = ShortOfMemory(failing, failure), list[object]()
    device.give_back = given_back.append
    rig = EngineRig(FINEST, device=device)
    weights = rig.store.master.clone()
    with pytest.raises(PassVoided) as voided:
        run(rig)
    assert device.asked >= failing
    assert voided.value.cause is Cause.MEMORY
    assert given_back == [()], "what is free, no slots"
    assert torch.equal(rig.store.master, weights)
    if not rig.engine.touched:
        assert not rig.store.gradients.any()
    assert_next_pass_is_right(rig)


@pytest.mark.parametrize("failing", [1, 14])
def test_other_failures_are_not_taken_for_it_and_no_slot_is_trusted_then(failing: int) -> None:
    rig = EngineRig(FINEST, device=ShortOfMemory(failing, RuntimeError("size mismatch")))
    with pytest.raises(RuntimeError, match="size mismatch"):
        run(rig)
    assert rig.engine.loaded() == []
    assert_next_pass_is_right(rig)
