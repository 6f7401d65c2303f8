"""Host memory that the CUDA driver knows: its pages are locked, and copies need no detour."""

from typing import Any

import torch

from atom.base.errors import DeviceError


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
