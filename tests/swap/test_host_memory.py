import mmap
from types import SimpleNamespace

import pytest
import torch

from atom.swap import host_memory
from atom.swap.host_memory import allocate_host_memory


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
