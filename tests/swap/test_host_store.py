"""Arenas on the host: weights in two halves, readers that wait for a step, and their memory."""

import mmap
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from atom.graph.ir import ParameterLayout
from atom.swap import host_memory, host_store
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import (
    MASTER,
    HostStore,
    Readiness,
    StateForm,
    StepFailed,
    joined,
    round_to_bfloat16,
    split,
)

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


# --- readers of the arenas wait for the pieces of a step that they read ---

PIECES = [(0, 16), (16, 32), (40, 48), (48, 64)]


@pytest.mark.parametrize(
    ("start", "stop", "pieces"),
    [
        (0, 16, [0]),
        (0, 17, [0, 1]),
        (15, 32, [0, 1]),
        (16, 32, [1]),
        (32, 40, []),
        (31, 41, [1, 2]),
        (47, 48, [2]),
        (48, 48, []),
        (0, 64, [0, 1, 2, 3]),
        (64, 80, []),
    ],
)
def test_a_stretch_waits_for_its_own_pieces_and_no_others(
    start: int, stop: int, pieces: list[int]
) -> None:
    for missing in pieces:
        readiness = Readiness(PIECES)
        for piece in set(pieces) - {missing}:
            readiness.finish(piece)
        readiness.fail(MemoryError("no room"))
        with pytest.raises(StepFailed, match="MemoryError: no room"):
            readiness.wait(start, stop)
    readiness = Readiness(PIECES)
    for piece in pieces:
        readiness.finish(piece)
    readiness.wait(start, stop)


def test_each_who_waits_gets_the_failure_as_an_exception_of_its_own() -> None:
    readiness, cause, caught = Readiness(PIECES), MemoryError("no room"), []
    for _ in range(2):
        readiness.fail(cause)
        with pytest.raises(StepFailed) as seen:
            readiness.wait(0, 1)
        caught.append(seen.value)
    assert caught[0] is not caught[1]
    assert [failed.__cause__ for failed in caught] == [cause, cause]


# --- memory ---


@pytest.mark.parametrize("elements", [0, 1, 5000])
def test_zeros_on_page_boundaries(elements: int) -> None:
    memory = allocate_host_memory(elements, torch.bfloat16)
    assert (memory.shape, memory.dtype) == ((elements,), torch.bfloat16)
    assert not memory.any()
    if elements:
        assert memory.data_ptr() % mmap.PAGESIZE == 0
        memory.fill_(3)
        assert bool((memory == 3).all())


def test_every_piece_is_touched_by_some_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_PIECE_BYTES", 4096)
    memory = torch.ones(10_001)
    host_memory._touch_every_page(memory)
    assert not memory.any()


def test_more_than_the_host_has_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="cannot give"):
        allocate_host_memory(2**60, torch.float32)


def test_what_is_locked_is_locked_for_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, ...]]()

    def locks(*given: int) -> int:
        asked.append(given)
        return 0

    driver = SimpleNamespace(cudaHostRegister=locks)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    memory = allocate_host_memory(1024, torch.float32)
    assert host_memory.register(memory)
    portable = 1  # cudaHostRegisterPortable of driver_types.h
    assert asked == [(memory.data_ptr(), 4096, portable)]


def test_a_refusal_is_not_left_for_the_next_kernel_to_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The runtime keeps it as its last error, which whoever starts a kernel is given."""
    last_error = list[str]()

    def refuses(*given: int) -> int:
        last_error.append("CUDA error: out of memory")
        return 2

    def starts(number: int) -> None:
        if last_error:
            raise RuntimeError(last_error.pop())

    driver = SimpleNamespace(cudaHostRegister=refuses)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    memory = allocate_host_memory(1024, torch.float32)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", lambda n, device: SimpleNamespace(add_=starts))
        assert not host_memory.register(memory)
    assert not last_error


@pytest.mark.parametrize(("moves_state", "element_bytes"), [(False, 2 + 4), (True, 2 + 4 + 4)])
def test_only_what_the_device_moves_is_locked(moves_state: bool, element_bytes: int) -> None:
    """Weights as they are computed with, and gradients; the state only where some is there."""
    asked = list[torch.Tensor]()

    def of_device(elements: int, dtype: torch.dtype) -> torch.Tensor:
        asked.append(allocate_host_memory(elements, dtype))
        return asked[-1]

    layout = ParameterLayout.of({"all": (3, 1000)})
    store = HostStore.allocate(layout, torch.bfloat16, of_device, moves_state=moves_state)
    assert sum(each.nbytes for each in asked) == element_bytes * layout.total_elements
    assert any(each is store.state[MASTER] for each in asked) is moves_state
