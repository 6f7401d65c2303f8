"""The device's arithmetic gives the host kernel's bits, and allocates nothing."""

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from awkward import numbers
from hypothesis import given
from hypothesis import strategies as st
from streamed_rig import FORMS, LAYOUT, Beside
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.overrides import TorchFunctionMode

from atom.optim.adamw import AdamWSettings
from atom.optim.bucket import Bucket, bucket_bytes
from atom.optim.device_adamw import KERNELS, TRAFFIC_BYTES, DeviceAdamW, scratch_bytes
from atom.optim.fused_multiply_add import FusedMultiplyAdd
from atom.optim.noise import key_of, round_at_random
from atom.swap.state_form import StateForm

IN_A_PROCESSOR = ctypes.CDLL(None).fmaf
IN_A_PROCESSOR.restype, IN_A_PROCESSOR.argtypes = ctypes.c_float, [ctypes.c_float] * 3


def memory(elements: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(elements, dtype=dtype)


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    out = torch.empty_like(a)
    FusedMultiplyAdd(len(a), memory)(a, b, c, out)
    return out


def assert_rounded_once(a: Tensor, b: Tensor, c: Tensor) -> None:
    triples = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    expected = torch.tensor([IN_A_PROCESSOR(*triple) for triple in triples])
    found, number = fused(a, b, c), ~expected.isnan()
    assert torch.equal(found.isnan(), ~number)
    assert torch.equal(found.view(torch.int32)[number], expected.view(torch.int32)[number])


def any_bits(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (count,), generator=generator).int().view(torch.float32)


def test_a_product_and_a_sum_are_rounded_once() -> None:
    count = 20_000
    assert_rounded_once(any_bits(count, 1), any_bits(count, 2), any_bits(count, 3))
    assert_rounded_once(numbers(count, 4), numbers(count, 5), numbers(count, 6))
    a, b = numbers(count, 7, widest=10), numbers(count, 8, widest=10)
    assert_rounded_once(a, b, -(a * b))  # all that is left is what was rounded away


@given(st.integers(0, 2**23 - 1), st.integers(0, 2**8), st.sampled_from([1, -1]), st.booleans())
def test_half_way_between_two_numbers_a_little_less_decides(
    even: int, little: int, side: int, negative: bool
) -> None:
    """c is even above 2^24, a·b is 1 less little²·2^-46: in float64 that does not show beside c."""
    a, b = 1 + little * 2.0**-23, 1 - little * 2.0**-23
    c = (2.0**24 + 2 * even) * (-1 if negative else 1)
    assert_rounded_once(torch.tensor([side * a]), torch.tensor([b]), torch.tensor([c]))


@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.5, 0.95), (0.3, 0.999)])
@pytest.mark.parametrize(("precision", "form"), FORMS)
def test_steps_have_the_host_kernels_bits(
    precision: torch.dtype, form: StateForm, betas: tuple[float, float]
) -> None:
    rig = Beside(precision, form, settings=AdamWSettings(betas, 1e-8, 0.1, seed=5))
    for number, coefficient in ((1, 1.0), (2, 0.37), (1000, 1e-3)):
        rig.step(number, coefficient)
        assert rig.equal, number
    parameters = sum(spec.numel for spec in LAYOUT.specs)
    assert rig.conveyor.updated_elements == 3 * parameters, "the host did some of it"
    assert not rig.told


@pytest.mark.parametrize(("precision", "form"), FORMS)
def test_a_step_reads_nothing_that_was_not_brought_for_it(
    precision: torch.dtype, form: StateForm
) -> None:
    """What was written when the memory was taken would be on another stream than the step."""
    rig = Beside(precision, form)
    for memory in rig.device.made:
        memory.view(torch.uint8).fill_(0xA5)
    rig.step(1)
    assert rig.equal


@pytest.mark.parametrize("form", StateForm)
def test_what_is_no_number_has_the_hosts_bits(form: StateForm) -> None:
    """Its bits differ between processors, so the host is asked to redo such pieces."""
    rig = Beside(form=form)
    for each in (rig.store, rig.whole):
        LAYOUT.view(each.state["exp_avg_sq"], "wide")[1, 3] = math.nan
        LAYOUT.view(each.state["exp_avg"], "long")[5] = math.inf
        LAYOUT.view(each.state["exp_avg_sq"], "long")[5] = math.inf
    rig.step(1)
    assert rig.equal
    assert rig.store.weights("wide").isnan().any()
    assert rig.store.weights("long").isnan().any()
    others = LAYOUT.by_name["matrix"].numel + LAYOUT.by_name["bias"].numel
    assert rig.conveyor.updated_elements == others
    assert not rig.told, "the device is sound"


def test_noise_is_the_kernels_beyond_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the definition in exact integers."""
    for first in (0, 5, 2**32 - 70, 7 * 2**32 + 11):
        key, expected = key_of(123, first), []
        for element in range(first, first + 64):
            x = (element ^ key) & 0xFFFFFFFF
            x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
            x = ((x ^ x >> 15) + (key >> 32)) * 0x846CA68B & 0xFFFFFFFF
            expected.append(x ^ x >> 16)
        wide = torch.zeros(64), torch.full((64,), 1 - 2.0**-9)
        narrow = torch.zeros(64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
        scratch = [torch.zeros(64, dtype=torch.float64) for _ in range(3)]
        moments = list(zip(wide, narrow, strict=True))
        round_at_random(moments, (first & 0xFFFFFFFF, key), scratch)
        assert scratch[0].view(torch.int64).tolist() == expected
        assert not narrow[0].any()
        up = [number >> 16 >= 0x8000 for number in expected]
        assert (narrow[1] == 1.0).tolist() == up


VIEWS = {"view", "getitem"}
BITWISE = "and", "or", "xor", "left_shift", "right_shift"


class InPlace(TorchFunctionMode):
    """Notes every operation's name and what it moves; each must write into memory that was there
    before."""

    def __init__(self, memory: Sequence[Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in memory}
        self.names = list[str]()
        self.moved_bytes = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            with DisableTorchFunction():
                address = result.untyped_storage().data_ptr()
            assert address in self._known, f"{func} makes memory"
            self._note(func.__name__.strip("_"), args, result)
        return result

    def _note(self, name: str, arguments: tuple[Any, ...], result: Tensor) -> None:
        if name in VIEWS:
            return
        self.names.append(name)
        read = arguments[1:] if name == "copy" else arguments
        with DisableTorchFunction():
            moved = [each for each in (*read, result) if isinstance(each, Tensor) and each.dim()]
            self.moved_bytes += sum(each.nbytes for each in moved)


@pytest.mark.parametrize(("precision", "form"), FORMS)
def test_nothing_is_allocated_and_every_operation_rounds_at_most_once(
    precision: torch.dtype, form: StateForm
) -> None:
    made = list[Tensor]()

    def remembered(elements: int, dtype: torch.dtype) -> Tensor:
        made.append(memory(elements, dtype))
        return made[-1]

    bucket = Bucket.allocate(64, precision, form, remembered)
    adamw, bad = DeviceAdamW(64, form, remembered), remembered(1, torch.bool)[0]
    bucket.scalars  # noqa: B018 - made once
    given = bucket.gradient(torch.float32, 50)
    with InPlace(made) as mode:
        adamw.update(bucket, given, moves_far=False, noise=(3, 5), bad=bad)
    rounding = {"add", "sub", "mul", "div", "sqrt", "copy"}
    exact = {"gt", "ne", "abs", "any", "arange", *(f"bitwise_{what}" for what in BITWISE)}
    assert set(mode.names) <= rounding | exact
    assert KERNELS[form] - 2 <= len(mode.names) < KERNELS[form]
    assert mode.moved_bytes / 50 == pytest.approx(TRAFFIC_BYTES[form], rel=0.02)
    taken = sum(tensor.nbytes for tensor in made)
    assert taken == pytest.approx(scratch_bytes(64) + bucket_bytes(64, precision, form), abs=64)
