import pytest
import torch

from atom.base.errors import DeviceError
from atom.swap.streams import CudaDevice


def test_without_a_gpu_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError) as refused:
        CudaDevice()
    assert 'device = "cpu"' in refused.value.hint


def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match="no GPU 2"):
        CudaDevice(2)
