"""Settings of the peer file for threads and determinism in this process."""

import os
from collections.abc import Iterator

import pytest
import torch

from atom.config.peer_file import Device
from atom.plan.devices import set_arithmetic

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(CUBLAS, "")
    monkeypatch.delenv(CUBLAS)
    threads, filling = torch.get_num_threads(), torch.utils.deterministic
    filled = filling.fill_uninitialized_memory
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    filling.fill_uninitialized_memory = filled


def test_kernels_are_deterministic_where_that_is_wanted_alone() -> None:
    set_arithmetic(Device())
    assert CUBLAS not in os.environ
    assert not torch.are_deterministic_algorithms_enabled()
    set_arithmetic(Device(deterministic=True, cpu_threads=1))
    assert os.environ[CUBLAS] == ":4096:8"
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled(), (
        "operations without such a kernel run too"
    )
    assert torch.get_num_threads() == 1
