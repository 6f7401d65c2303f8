"""Fixtures of the device path: on a GPU if there is one, otherwise on the CPU.

A GPU's own kernels are compared with themselves, so what repeats a computation must repeat its
bits: deterministic algorithms are on. cuBLAS reads its setting when it is first used.
"""

import gc
import os
from collections.abc import Iterator

import pytest
import torch

from atom.swap.device import CpuDevice, Device

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
ON_A_GPU = torch.cuda.is_available()
collect_ignore = [] if ON_A_GPU else ["test_memory.py"]
"""Tests of a GPU's own memory have no counterpart on a CPU."""


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def device() -> Iterator[Device]:
    device = _opened()
    yield device
    device.close()
    gc.collect()  # engines are in reference cycles: their slots would still be there


@pytest.fixture
def second_device() -> Iterator[Device]:
    """Another GPU, or the same once more."""
    device = _opened(1 if torch.cuda.device_count() > 1 else 0)
    yield device
    device.close()


def _opened(index: int = 0) -> Device:
    if not ON_A_GPU:
        return CpuDevice()
    from atom.swap.streams import CudaDevice

    return CudaDevice(index)
