from contextlib import nullcontext

import pytest
import torch

from atom.base.errors import DeviceError
from atom.swap.streams import CudaDevice, StreamTimes, has_code
from tests.manual_clock import ManualClock


def test_without_a_gpu_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError) as refused:
        CudaDevice()
    assert 'kind = "cpu"' in refused.value.hint


@pytest.fixture
def old_card(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "device": lambda index: nullcontext(),
        "is_bf16_supported": lambda emulated=True: emulated,
        "get_device_name": lambda index: "GTX 1080 Ti",
        "get_device_capability": lambda index: (6, 1),
        "get_arch_list": lambda: ["sm_61"],
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)


@pytest.mark.usefixtures("old_card")
def test_a_gpu_that_is_not_there_or_only_emulates_bfloat16_is_named() -> None:
    with pytest.raises(DeviceError, match="no GPU 1"):
        CudaDevice(1)
    with pytest.raises(DeviceError, match="GTX 1080 Ti has no bfloat16") as refused:
        CudaDevice(0, torch.bfloat16)
    assert "float16" in refused.value.hint


@pytest.mark.usefixtures("old_card")
def test_a_gpu_that_pytorch_has_no_code_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "compute_120"])
    with pytest.raises(DeviceError, match=r"GTX 1080 Ti \(sm_61\)") as refused:
        CudaDevice()
    assert "12.6" in refused.value.hint


CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_110a", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "runs"),
    [((7, 0), False), ((7, 5), True), ((8, 0), True), ((8, 9), True), ((9, 0), True),
     ((10, 3), True), ((11, 0), True), ((11, 1), False), ((12, 1), True), ((13, 0), True)],
)  # fmt: skip
def test_code_runs_on_later_minor_versions_and_what_the_driver_compiles_on_all_later(
    capability: tuple[int, int], runs: bool
) -> None:
    assert has_code(capability, [*CU130, "gfx90a"]) == runs


class FakeStream:
    """A device whose time passes by the work given to it, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 1e6
        self.synchronized = 0

    def synchronize(self) -> None:
        self.synchronized += 1


class FakeEvent:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: FakeStream) -> None:
        self.at_ms = stream.now_ms

    def elapsed_time(self, later: "FakeEvent") -> float:
        return later.at_ms - self.at_ms


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> FakeStream:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    return FakeStream()


def test_times_on_streams_become_times_on_the_clock_once_drained(stream: FakeStream) -> None:
    clock, told = ManualClock(50.0), list[tuple[float, float]]()
    times = StreamTimes(clock)
    for origin_s in (50.0, 70.0):
        times.begin(stream)
        for _ in range(2):
            stream.now_ms += 1000
            with times.around(stream, lambda *span: told.append(span)):
                stream.now_ms += 500
            times.begin(stream)
        assert told == [], "nobody waited for them"
        times.end(tell=True)
        assert told == [(origin_s + 1.0, origin_s + 1.5), (origin_s + 2.5, origin_s + 3.0)]
        told.clear()
        clock.advance(20)
    assert stream.synchronized == 2, "once per origin"
    times.begin(stream)
    with times.around(stream, lambda *span: told.append(span)):
        stream.now_ms += 1
    for tell in (False, True):
        times.end(tell)
        times.begin(stream)
    assert told == [], "those of a failed pass are forgotten"


def test_what_a_host_thread_ends_is_told_at_once(stream: FakeStream) -> None:
    clock, told = ManualClock(10.0), list[tuple[float, float]]()
    times = StreamTimes(clock)
    times.begin(stream)
    stream.now_ms += 250
    started = times.mark(stream)
    clock.advance(2)
    times.report_until_now(started, lambda *span: told.append(span))
    assert told == [(10.25, 12.0)]
