"""Host memory that the CUDA driver knows: its pages are locked, and copies need no detour."""

from contextlib import suppress
from typing import Any

import torch

_LEAST_BYTES = 64 * 2**10
"""Below this, registering costs more than it gives."""


class RegisteredMemory:
    """What is registered with one GPU's context, and held until it is released."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[int, torch.Tensor] = {}
        """By address."""
        self._refused: dict[int, int] = {}
        """Bytes by address."""

    @property
    def unlocked_bytes(self) -> int:
        """Of what is to be registered, what the driver did not lock."""
        return sum(self._refused.values())

    def hold(self, memory: torch.Tensor) -> None:
        """Registers it, unless it is too small. Where the driver refuses (in WSL it locks little),
        copies take a detour through its own buffers: the same bytes, later."""
        size_bytes = memory.numel() * memory.element_size()
        if size_bytes < _LEAST_BYTES:
            return
        with torch.cuda.device(self._device):
            if register(memory.data_ptr(), size_bytes):
                self._held[memory.data_ptr()] = memory
            else:
                self._refused[memory.data_ptr()] = size_bytes
                _forget_refusal(self._device)

    def release(self, memory: torch.Tensor) -> None:
        """No copy of it is under way."""
        self._refused.pop(memory.data_ptr(), None)
        if self._held.pop(memory.data_ptr(), None) is not None:
            with torch.cuda.device(self._device):
                unregister(memory.data_ptr())

    def close(self) -> None:
        """Releases all."""
        for memory in list(self._held.values()):
            self.release(memory)


def register(pointer: int, size_bytes: int) -> bool:
    """Locks host memory for the current device's copy engines, if the driver can."""
    return int(_cudart().cudaHostRegister(pointer, size_bytes, 0)) == 0


def unregister(pointer: int) -> None:
    """Undoes `register`."""
    _cudart().cudaHostUnregister(pointer)


def _forget_refusal(device: torch.device) -> None:
    """A refusal stays the runtime's last error until somebody asks for it, and who starts a kernel
    asks: this one, so that no other takes it for its own."""
    with suppress(RuntimeError):
        torch.zeros(1, device=device).add_(1)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
