"""Host memory for arenas: whole pages, large ones if possible, present before the first use.

Memory may also be registered with the CUDA driver, which locks its pages, so that copies need no
intermediate buffer.

A page fault costs about as much as copying the page. Page by page within the first training pass
the faults would dominate it. Therefore several threads cause them at allocation.
"""

import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from atom.base.control_groups import usable_processors

HUGE_PAGE_BYTES = 2 * 2**20
_PIECE_BYTES = 64 * HUGE_PAGE_BYTES
_MAXIMUM_THREADS = 16
_PORTABLE = 1
"""Flag cudaHostRegisterPortable of CUDA's headers: register the memory for all GPUs."""
LEAST_REGISTERED_BYTES = 64 * 2**10
"""Size below which registering costs more time than it saves."""


def allocate_host_memory(elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a flat tensor of zeros [elements], page-aligned, with all pages present.

    A forked child does not see the memory: a fork would turn every later write into a copy of the
    page, and could separate a GPU's copy engine from the pages that it was given. The memory is
    freed with the last tensor that uses it.

    Raises:
        MemoryError: The host has too little memory.
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
    """Return the pages of memory from `allocate_host_memory` to the system.

    The tensor stays valid: it reads as zeros, and each page is allocated again when it is written.
    """
    size_bytes = memory.numel() * memory.element_size()
    if size_bytes == 0:
        return
    address, length = ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(size_bytes)
    code = ctypes.CDLL(None).madvise(address, length, mmap.MADV_DONTNEED)
    assert code == 0, "the memory consists of whole pages"


def _advise(pages: mmap.mmap, name: str) -> None:
    """Give the kernel advice about pages; it is harmless if a kernel refuses."""
    advice = getattr(mmap, name, None)
    if advice is None:
        return
    try:
        pages.madvise(advice)
    except OSError:
        return


def _touch_every_page(memory: torch.Tensor) -> None:
    """Write zeros on several threads: filling releases the interpreter's lock."""
    step = _PIECE_BYTES // memory.element_size()
    pieces = [memory[start : start + step] for start in range(0, memory.numel(), step)]
    threads = min(len(pieces), usable_processors(), _MAXIMUM_THREADS)
    if threads <= 1:
        memory.zero_()
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(torch.Tensor.zero_, pieces))


def register(memory: torch.Tensor) -> bool:
    """Lock host memory for the copy engines of all GPUs; return False if the driver refuses.

    In WSL the driver can lock only little memory.
    """
    if int(_cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)) == 0:
        return True
    with suppress(RuntimeError):
        # The refusal stays the runtime's last error until it is read, and the launch of a kernel
        # reads it. This kernel does so, so that no later one fails with the error.
        torch.zeros(1, device="cuda").add_(1)
    return False


def unregister(memory: torch.Tensor) -> None:
    """Unlock memory that `register` has locked."""
    _cudart().cudaHostUnregister(memory.data_ptr())


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
