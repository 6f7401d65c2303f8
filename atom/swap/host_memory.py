"""Host memory for arenas: whole pages, huge where the kernel allows, faulted in before use; and
registered with the CUDA driver, which locks its pages, so that copies need no detour.

A page fault costs about as much as copying the page; taken one by one inside the first training
pass they would dominate it, so they are taken here, by several threads at once.
"""

import ctypes
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

HUGE_PAGE_BYTES = 2 * 2**20
_PIECE_BYTES = 64 * HUGE_PAGE_BYTES
_MAXIMUM_THREADS = 16
_PORTABLE = 1
"""cudaHostRegisterPortable, in CUDA's headers: to be had for every GPU, not for one."""
LEAST_REGISTERED_BYTES = 64 * 2**10
"""Below this, registering costs more than it gives."""


def allocate_host_memory(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor of zeros [elements], page-aligned, all pages present.

    The memory belongs to this process alone: a forked child does not see it (a fork would turn
    every later write into a page copy, and could part a GPU's copy engine from the pages it was
    given). It is freed with the last tensor that uses it.

    Raises: MemoryError when the host has not got that much.
    """
    size_bytes = max(elements, 1) * dtype.itemsize
    padded_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        pages = mmap.mmap(-1, padded_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"the host cannot give {padded_bytes} bytes: {error}") from error
    _advise(pages, "MADV_DONTFORK")
    if padded_bytes >= HUGE_PAGE_BYTES:
        _advise(pages, "MADV_HUGEPAGE")
    memory = torch.frombuffer(pages, dtype=dtype)[:elements]
    _touch_every_page(memory)
    return memory


def give_back_pages(memory: torch.Tensor) -> None:
    """Gives the pages of memory from `allocate_host_memory`, whole, to the system. It may be used
    as before: what is read is zeros, and each page comes back when it is written."""
    size_bytes = memory.numel() * memory.element_size()
    if size_bytes == 0:
        return
    address, length = ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(size_bytes)
    code = ctypes.CDLL(None).madvise(address, length, mmap.MADV_DONTNEED)
    assert code == 0, "the pages are ours, and whole"


def _advise(pages: mmap.mmap, name: str) -> None:
    """Advice is a wish: kernels built without a feature refuse it, which changes nothing."""
    advice = getattr(mmap, name, None)
    if advice is None:
        return
    try:
        pages.madvise(advice)
    except OSError:
        return


def _touch_every_page(memory: torch.Tensor) -> None:
    """Writes zeros, in parallel: filling releases the interpreter lock, faults are per thread."""
    step = _PIECE_BYTES // memory.element_size()
    pieces = [memory[start : start + step] for start in range(0, memory.numel(), step)]
    threads = min(len(pieces), len(os.sched_getaffinity(0)), _MAXIMUM_THREADS)
    if threads <= 1:
        memory.zero_()
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(torch.Tensor.zero_, pieces))


def register(memory: torch.Tensor) -> bool:
    """Locks host memory for the copy engines of all GPUs, if the driver can (in WSL it locks
    little)."""
    if int(_cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)) == 0:
        return True
    with suppress(RuntimeError):
        # A refusal stays the runtime's last error until somebody asks for it, and who starts a
        # kernel asks: this one, so that no other takes it for its own.
        torch.zeros(1, device="cuda").add_(1)
    return False


def unregister(memory: torch.Tensor) -> None:
    """Undoes `register`."""
    _cudart().cudaHostUnregister(memory.data_ptr())


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
