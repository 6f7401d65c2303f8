"""The code for GPUs, run without one: streams and events run all work at once.

The order of work on a real device is not tested here. The tests show that every method of
`CudaDevice` does what an engine needs.
"""

import math
import os
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_rig import EngineRig
from hand_written_program import FINEST, batches
from played_gpu import Event, HostedDevice, Machine, Stream, hosted

from atom.base.errors import DeviceError
from atom.swap import streams
from atom.swap.engine import Engine
from atom.swap.host_store import Readiness, StepFailed
from atom.swap.host_sums import AdditionOrder, Gate, HostSum, add_admitted
from atom.swap.streams import CudaDevice, StreamTimes, has_code, set_allocator
from atom.swap.voided import PassVoided
from tests.manual_clock import ManualClock

WAIT_S = 20.0
"""Longest wait for work that should be done at once."""


@pytest.fixture
def device() -> Iterator[HostedDevice]:
    machine = Machine()
    with hosted(machine):
        device = HostedDevice(machine)
        yield device
        device.close()


def test_the_steady_state_makes_nothing_and_only_the_thread_that_adds_waits(
    device: HostedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first pass no event, stream, slot or host memory is created.

    The thread that launches waits for losses and extremes only.
    """
    rig = EngineRig(FINEST, device=device)
    rig.engine.run_pass(batches([2, 3]), [1, 2])
    told = list[str]()

    def note(what: str) -> Callable[..., None]:
        return lambda *given, **named: told.append(f"{what}, {threading.current_thread().name}")

    for name in ("host_memory", "slot_memory", "reserve_gradients"):
        monkeypatch.setattr(device, name, note("memory"))
    for made in (Stream, Event):
        monkeypatch.setattr(torch.cuda, made.__name__, note("made"))
        monkeypatch.setattr(made, "synchronize", note("waits"))
    monkeypatch.setattr(torch.cuda, "synchronize", note("waits"))
    for seed in range(3):
        rig.engine.run_pass(batches([2, 3], seed), [seed, 2])
        rig.store.changed()
        assert set(told) <= {"waits, atom-gradient-sums_0"}


class SteeredSums:
    """Replacement of `add_admitted` that calls `before` ahead of the addition with this number."""

    def __init__(self, number: int, before: Callable[[], object]) -> None:
        self._number, self._before, self._begun = number, before, 0

    def __call__(self, sums: Sequence[HostSum], gate: Gate, extremes: torch.Tensor) -> None:
        self._begun += 1
        with gate.adding():
            if self._begun == self._number:
                self._before()
        add_admitted(sums, gate, extremes)


LAST = len(FINEST)


def test_the_next_gradients_are_copied_while_others_are_added(
    device: HostedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, copied = 0, threading.Event()
    copy = device._copy

    def noting(stream: Any, *given: Any) -> None:
        nonlocal copies
        copy(stream, *given)
        copies += stream is device._out
        if copies == 2:
            copied.set()

    monkeypatch.setattr(device, "_copy", noting)
    monkeypatch.setattr(streams, "add_admitted", SteeredSums(1, lambda: copied.wait(WAIT_S)))
    first_pass(EngineRig(FINEST, device=device))
    device.drain()
    assert copied.is_set()
    assert copies == LAST


def test_a_device_without_memory_leaves_the_workspaces_of_others_alone(
    device: HostedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device releases free memory during passes of other devices."""
    told = list[str]()
    monkeypatch.setattr(streams, "give_back_cache", lambda: told.append("all"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: told.append("what is free"))
    device.give_back(())
    device.give_back([device.slot_memory(16, torch.float32)])
    assert told == ["what is free", "all"]


def test_what_waits_on_the_host_is_added_before_the_next_pass_takes_its_place(
    device: HostedDevice,
) -> None:
    """The pass that it belongs to waits for another device, and the next one is copied already."""
    order, arena, place = AdditionOrder(ManualClock()), torch.zeros(16), torch.ones(16)
    device.reserve_gradients(2, 16, torch.float32)
    added = [HostSum(arena, place, replace=False, on_host=True)]
    device.gradients_out(0, added, Gate(order=order, number=1), None, None)
    put = [HostSum(place, torch.full((16,), 5.0), replace=True, sub_model=1, waits_on_host=True)]
    device.gradients_out(1, put, Gate(order=order), None, None)
    device.wait_gradients_out(1)
    with order.turn(0, 0):
        pass
    device.drain()
    assert (arena[0], place[0]) == (1, 5)


def test_a_pass_returns_when_its_gradients_are_found_finite_and_before_they_are_added(
    device: HostedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned = threading.Event()
    monkeypatch.setattr(streams, "add_admitted", SteeredSums(LAST, lambda: returned.wait(WAIT_S)))
    hosted, plain = EngineRig(FINEST, device=device), EngineRig(FINEST)
    assert hosted.engine.run_pass(batches([2]), [1]) == plain.engine.run_pass(batches([2]), [1])
    returned.set()
    hosted.engine.wait_added()
    assert torch.equal(hosted.store.gradients, plain.store.gradients)
    for rig in (hosted, plain):
        rig.engine.run_pass(batches([2, 3]), [1, 2])
        rig.engine.run_pass(batches([3]), [3])
    hosted.engine.wait_added()
    assert torch.equal(hosted.store.gradients, plain.store.gradients)


@pytest.mark.parametrize("asked", ["before the next pass", "by the next pass", "by nobody"])
def test_what_does_not_land_of_a_counted_pass_costs_what_was_accumulated(
    device: HostedDevice, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise MemoryError("no room")

    steered = SteeredSums(LAST, fail)
    monkeypatch.setattr(streams, "add_admitted", steered)
    hosted, plain = EngineRig(FINEST, device=device), EngineRig(FINEST)
    hosted.engine.run_pass(batches([2]), [1])
    if asked == "before the next pass":
        with pytest.raises(MemoryError):
            hosted.engine.wait_added()
    elif asked == "by nobody":
        with pytest.raises(MemoryError):
            device.drain()
        with pytest.raises(MemoryError):
            hosted.engine.wait_added()
    with pytest.raises(PassVoided, match="no room"):
        hosted.engine.run_pass(batches([2]), [1])
    assert hosted.engine.touched
    hosted.store.gradients.zero_()
    for rig in (hosted, plain):
        rig.engine.run_pass(batches([2, 3]), [1, 2])
    hosted.engine.wait_added()
    assert torch.equal(hosted.store.gradients, plain.store.gradients)


def test_it_is_known_before_a_pass_that_does_not_begin_is_refused(
    device: HostedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The addition fails only after a thread has begun to wait for it."""
    waited_for, drain = threading.Event(), device.drain

    def fail() -> None:
        assert waited_for.wait(WAIT_S)
        raise MemoryError("no room")

    def waiting() -> None:
        waited_for.set()
        drain()

    monkeypatch.setattr(streams, "add_admitted", SteeredSums(LAST, fail))
    monkeypatch.setattr(device, "drain", waiting)
    hosted = EngineRig(FINEST, device=device)
    hosted.engine.run_pass(batches([2]), [1])
    with pytest.raises(ValueError, match="0 micro-batches"):
        hosted.engine.run_pass([], [])
    assert hosted.engine.touched
    waited_for.set()


def test_slots_given_back_hold_no_memory_and_are_empty_afterwards(device: HostedDevice) -> None:
    """The gradients leave in 16 bits."""
    narrow = torch.bfloat16
    hosted = EngineRig(FINEST, narrow, device, gradients=narrow)
    hosted.engine.run_pass(batches([2, 3]), [1, 2])
    hosted.engine.wait_added()
    slots = hosted.engine._slots
    owned = [*slots.weights, *slots.gradients, *slots.leaving]
    slots.give_back(device)
    assert [slot.untyped_storage().nbytes() for slot in owned] == [0] * len(owned)
    assert hosted.engine.loaded() == []
    slots.take_again(device)
    assert not any(slot.any() for slot in owned)


def first_pass(rig: EngineRig) -> list[float]:
    return rig.engine.run_pass(batches([2, 3]), [1, 2], first=True)


@pytest.mark.parametrize("gradients", [torch.float32, torch.bfloat16])
def test_a_first_pass_lands_where_it_belongs(device: HostedDevice, gradients: torch.dtype) -> None:
    """Weights in the same numbers. A pass that is void leaves there what the next one replaces."""
    hosted = EngineRig(FINEST, gradients, device, gradients=gradients)
    plain = EngineRig(FINEST, gradients, gradients=gradients)
    weight = hosted.parameter("block0.up.weight")
    before = weight.clone()
    hosted.store.gradients.fill_(math.nan)  # of another round
    weight[0, 0] = math.inf
    hosted.store.round_master()
    with pytest.raises(PassVoided):
        first_pass(hosted)
    assert not hosted.engine.touched
    weight.copy_(before)
    hosted.store.round_master()
    assert first_pass(hosted) == first_pass(plain)
    hosted.engine.wait_added()
    assert torch.equal(hosted.store.gradients, plain.store.gradients)


def test_sums_that_live_on_the_device_are_added_there_and_nothing_else_is(
    device: HostedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that is not finite adds none of them."""
    hosted, plain = EngineRig(FINEST, device=device), EngineRig(FINEST)
    names = [spec.name for spec in hosted.store.layout.specs]
    on_device = hosted.store.live_on(device, frozenset(names[::2]))
    on_device.to_device()
    ours = on_device.sums.memory.untyped_storage().data_ptr()

    def stays(part: HostSum) -> bool:
        return part.destination.untyped_storage().data_ptr() == ours

    monkeypatch.setattr(HostSum, "stays_on_gpu", property(stays))
    hosted.engine = Engine(hosted.program, hosted.classes, hosted.store, hosted.slots, device)
    for rig in (hosted, plain):
        rig.engine.run_pass(batches([2, 3]), [1, 2])
        rig.engine.run_pass(batches([3]), [3])
        rig.engine.wait_added()
    assert not any(hosted.gradients()[name].any() for name in names[::2])
    on_device.sums_to_host()
    assert torch.equal(hosted.store.gradients, plain.store.gradients)
    before = on_device.sums.memory.clone()
    hosted.parameter(names[-1]).fill_(math.inf)
    hosted.store.round_master()
    with pytest.raises(PassVoided):
        hosted.engine.run_pass(batches([3]), [3])
    assert torch.equal(on_device.sums.memory, before)


def test_a_load_waits_for_the_step_of_what_it_moves(device: HostedDevice) -> None:
    rig = EngineRig(FINEST, device=device)
    rig.engine.run_pass(batches([2]), [1])
    rig.store.changed()
    rig.store.readiness = Readiness([(0, rig.program.layout.total_elements)])
    rig.store.readiness.fail(MemoryError("no room"))
    with pytest.raises(StepFailed, match="no room"):
        rig.engine.run_pass(batches([2]), [1])
    assert rig.engine.loaded() == []


def test_memory_that_the_driver_does_not_lock_is_used_as_it_is(
    device: HostedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = device.host_memory(2**16, torch.float32)
    assert [id(held) for held in device._registered] == [id(memory)]
    monkeypatch.setattr(streams, "register", lambda memory: False)
    assert device.unlocked_bytes == 0
    device.host_memory(2**18, torch.float32)
    assert device.unlocked_bytes == 2**20
    hosted, plain = EngineRig(FINEST, device=device), EngineRig(FINEST)
    assert first_pass(hosted) == first_pass(plain)
    hosted.engine.wait_added()
    assert torch.equal(hosted.store.gradients, plain.store.gradients)


# ---- whether there is one that suits


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


@pytest.mark.parametrize(
    ("kernel", "environment", "grows"),
    [
        ("6.8.0-49-generic", {}, True),
        ("5.15.167.4-microsoft-standard-WSL2", {}, False),
        ("6.8.0-49-generic", {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, False),
    ],
)
def test_the_allocator_grows_where_it_can_and_keeps_to_its_cap(
    kernel: str,
    environment: dict[str, str],
    grows: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, caps = list[str](), list[float]()
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(platform, "release", lambda: kernel)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append)
    has = SimpleNamespace(total_memory=8 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: has)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: caps.append(share)
    )
    for memory_bytes in (2 * 2**30, math.inf, 16 * 2**30):
        set_allocator(torch.device("cuda", 0), memory_bytes)
    assert settings == ["expandable_segments:True"] * 3 * grows
    assert caps == [0.25, 1.0, 1.0]


def test_what_is_open_on_a_gpu_has_its_caps_together(
    device: HostedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device without a limit lifts the others' limits only while it is open."""
    caps = list[float]()
    monkeypatch.setattr(streams, "set_allocator", lambda device, cap: caps.append(cap))
    capped, other, all_of_it = (CudaDevice(1, memory_bytes=most) for most in (4, 3, None))
    for each in (all_of_it, capped, other):
        each.close()
    assert caps == [4, 7, math.inf, 7, 3, math.inf]


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


# ---- times


class Timed(Machine):
    """Machine whose time is set by hand, in milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms, self.synchronized = 1e6, 0

    def record(self, event: Event, stream: Stream) -> None:
        event.records = [self.now_ms]

    def synchronize(self, awaited: Stream | Event) -> None:
        self.synchronized += 1

    def elapsed_ms(self, earlier: Event, later: Event) -> float:
        return float(later.records[0] - earlier.records[0])


@pytest.fixture
def timed() -> Iterator[Timed]:
    machine = Timed()
    with hosted(machine):
        yield machine


def test_times_on_streams_become_times_on_the_clock_once_drained(timed: Timed) -> None:
    clock, told = ManualClock(50.0), list[tuple[float, float]]()
    times, stream = StreamTimes(clock), torch.cuda.Stream()
    for origin_s in (50.0, 70.0):
        times.begin(stream, print)
        for _ in range(2):
            timed.now_ms += 1000
            with times.around(stream, lambda *span: told.append(span)):
                timed.now_ms += 500
            times.begin(stream, print)
        assert told == [], "no caller waited for them"
        times.end(succeeded=True)
        assert told == [(origin_s + 1.0, origin_s + 1.5), (origin_s + 2.5, origin_s + 3.0)]
        told.clear()
        clock.advance(20)
    assert timed.synchronized == 2, "once per origin"
    times.begin(stream, print)
    with times.around(stream, lambda *span: told.append(span)):
        timed.now_ms += 1
    for tell in (False, True):
        times.end(tell)
        times.begin(stream, print)
    assert told == [], "records of a failed pass are forgotten"
