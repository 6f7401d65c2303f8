"""What the driver's library says, understood; the library itself is played here."""

import os
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from atom.extras.owner.machine import Gpu, open_gpu

US = os.getpid()
OTHER = os.getppid()


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


@dataclass
class Sample:
    pid: int
    smUtil: int  # noqa: N815 - the library's name
    timeStamp: int = 5  # noqa: N815 - likewise


class Library:
    NVMLError = NVMLError
    NVML_ERROR_NOT_FOUND = 6

    def __init__(self) -> None:
        self.computing = [US]
        self.samples: list[Sample] | int = 6
        self.asked_since: list[int] = []

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[object]:
        return [SimpleNamespace(pid=pid) for pid in self.computing]

    def nvmlDeviceGetProcessUtilization(self, handle: object, since: int) -> list[Sample]:
        self.asked_since.append(since)
        if isinstance(self.samples, int):
            raise NVMLError(self.samples)
        return self.samples


@pytest.mark.parametrize(
    ("samples", "used"),
    [
        ([], False),
        (6, False),
        ([Sample(US, 90)], False),
        ([Sample(US, 90), Sample(OTHER, 9)], False),
        ([Sample(OTHER, 10)], True),
    ],
)
def test_whoever_takes_the_gpus_time_uses_it(samples: list[Sample] | int, used: bool) -> None:
    library = Library()
    library.samples = samples
    gpu = Gpu("", library, None)
    assert bool(gpu.other_user()) is used
    assert gpu.blind == ""
    gpu.other_user()
    assert library.asked_since[0] == 0
    assert library.asked_since[1] == (5 if samples not in ([], 6) else 0)


def test_where_nothing_is_counted_whoever_computes_uses_it() -> None:
    library = Library()
    library.samples = 3
    gpu = Gpu("", library, None)
    assert gpu.other_user() == ""
    library.computing = [US, OTHER]
    assert gpu.other_user()
    library.computing = [OTHER]
    assert gpu.other_user() == "", "where it cannot find itself it accuses nobody"
    assert "does not list this program" in gpu.blind


def test_without_a_gpu() -> None:
    gpu = open_gpu(torch.device("cpu"))
    assert (gpu.blind, gpu.other_user()) == ("no GPU", "")
