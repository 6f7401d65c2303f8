"""Host memory that the CUDA driver knows: its pages are locked, and copies need no detour."""

from typing import Any

import torch

from atom.base.errors import DeviceError

_LEAST_BYTES = 64 * 2**10
"""Below this, registering costs more than it gives."""


class RegisteredMemory:
    """What is registered with one GPU's context, and held until it is released."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[int, torch.Tensor] = {}
        """By address."""

    def hold(self, memory: torch.Tensor) -> None:
        """Registers it, unless it is too small. Raises: DeviceError."""
        size_bytes = memory.numel() * memory.element_size()
        if size_bytes < _LEAST_BYTES:
            return
        with torch.cuda.device(self._device):
            register(memory.data_ptr(), size_bytes)
        self._held[memory.data_ptr()] = memory

    def release(self, memory: torch.Tensor) -> None:
        """No copy of it is under way."""
        if self._held.pop(memory.data_ptr(), None) is not None:
            with torch.cuda.device(self._device):
                unregister(memory.data_ptr())

    def close(self) -> None:
        """Releases all."""
        for memory in list(self._held.values()):
            self.release(memory)


def register(pointer: int, size_bytes: int) -> None:
    """Locks host memory for the current device's copy engines. Raises: DeviceError."""
    code = _cudart().cudaHostRegister(pointer, size_bytes, 0)
    if int(code) != 0:
        raise DeviceError(
            f"the driver cannot lock {size_bytes} bytes of host memory (CUDA error {int(code)})",
            "raise the limit of locked memory (ulimit -l), or free host memory",
        )


def unregister(pointer: int) -> None:
    """Undoes `register`."""
    _cudart().cudaHostUnregister(pointer)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
