import mmap
from types import SimpleNamespace

import pytest
import torch

from atom.graph.ir import ParameterLayout
from atom.swap import host_memory
from atom.swap.host_memory import allocate_host_memory
from atom.swap.host_store import MASTER, HostStore


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
