"""The code for GPUs, run without one: streams and events that do everything at once.

What runs in which order on a real device is not seen here; that every method of `CudaDevice` does
what an engine needs of it is.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from engine_rig import EngineRig
from hand_written_program import FINEST, batches

from atom.graph.ir import padded_elements
from atom.swap import streams
from atom.swap.device import RandomState
from atom.swap.readiness import Readiness, StepFailed
from atom.swap.schedule import GradientOut
from atom.swap.streams import CudaDevice
from atom.swap.timeline import Recording
from atom.swap.voided import PassVoided


class PromptStream:
    """Has done everything already."""

    def __init__(self, priority: int = 0) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass


class PromptEvent:
    def __init__(self, **options: bool) -> None:
        pass

    def record(self, stream: PromptStream) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: "PromptEvent") -> float:
        return 0.0


class HostedDevice(CudaDevice):
    """Its device memory is the host's."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def slot_memory(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(elements, dtype=dtype)

    def seed(self, seed: int) -> RandomState:
        generator = torch.Generator()
        generator.manual_seed(seed)
        return RandomState(generator.get_state(), None)

    def random_state(self) -> RandomState:
        return RandomState(torch.get_rng_state(), None)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostedDevice]:
    for name, value in {
        "Stream": PromptStream,
        "Event": PromptEvent,
        "current_stream": PromptStream,
        "device": lambda device: nullcontext(),
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda device=None: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(streams, "require_gpu", lambda index, precision: None)
    monkeypatch.setattr(streams, "give_back_cache", lambda: None)
    monkeypatch.setattr(streams, "register", lambda memory: True)
    monkeypatch.setattr(streams, "unregister", lambda memory: None)
    device = HostedDevice()
    yield device
    device.close()


def test_passes_are_those_of_the_cpu(device: HostedDevice) -> None:
    recording = Recording()
    hosted, plain = EngineRig(FINEST, device=device, observer=recording), EngineRig(FINEST)
    for seed in range(2):
        data = batches([2, 3], seed)
        assert hosted.engine.run_pass(data, [1, 2]) == plain.engine.run_pass(data, [1, 2])
    assert torch.equal(hosted.store.gradients, plain.store.gradients)
    assert GradientOut in {type(span.event) for span in recording.take().spans}


def test_the_steady_state_makes_nothing_and_only_its_end_waits(
    device: HostedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event, no stream, no slot and no host memory after the first pass. Who launches waits for
    the device once, when all of a pass has been launched; the thread that adds may, before."""
    rig = EngineRig(FINEST, device=device)
    rig.engine.run_pass(batches([2, 3]), [1, 2])
    told, default = list[str](), PromptStream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: default)

    def note(what: str) -> Callable[..., None]:
        return lambda *given, **named: told.append(f"{what}, {threading.current_thread().name}")

    for name in ("host_memory", "slot_memory", "reserve_gradients"):
        monkeypatch.setattr(device, name, note("memory"))
    for made in (PromptStream, PromptEvent):
        monkeypatch.setattr(made, "__init__", note("made"))
        monkeypatch.setattr(made, "synchronize", note("waits"))
    monkeypatch.setattr(torch.cuda, "synchronize", note("waits"))
    drain = device.drain
    monkeypatch.setattr(device, "drain", lambda: [told.append("all is launched"), drain()])
    for seed in range(3):
        rig.engine.run_pass(batches([2, 3], seed), [seed, 2])
        rig.store.changed()
        end = told.index("all is launched")
        adding = {"waits, atom-gradients-out_0"}
        assert set(told[:end]) <= adding
        here = f"waits, {threading.current_thread().name}"
        assert set(told[end + 1 :]) <= {here, *adding}
        told.clear()


@pytest.mark.parametrize("at_a_time", [7, 2**23])
def test_slots_given_back_hold_no_memory_and_are_the_same_afterwards(
    device: HostedDevice, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gradients in sixteen bits, rounded piece by piece."""
    monkeypatch.setattr(streams, "BOUNCE_ELEMENTS", at_a_time)
    narrow = torch.bfloat16
    hosted = EngineRig(FINEST, narrow, device, gradients=narrow)
    plain = EngineRig(FINEST, narrow, gradients=narrow)
    for seed in range(2):
        for rig in (hosted, plain):
            rig.engine.run_pass(batches([2, 3], seed), [seed, 2])
        slots, bounce = hosted.engine._slots, device._bounce
        assert bounce is not None
        owned = [*slots.weights, *slots.gradients, bounce]
        slots.give_back(device)
        assert [slot.untyped_storage().nbytes() for slot in owned] == [0] * len(owned)
        assert hosted.engine.loaded() == []
        slots.take_again(device)
        assert not any(slot.any() for slot in owned)
    assert torch.equal(hosted.store.gradients, plain.store.gradients)


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
    for staged in device._staging.values():
        staged.fill_(-7)
    assert first_pass(hosted) == first_pass(plain)
    assert torch.equal(hosted.store.gradients, plain.store.gradients)
    added = 0  # to what is there: in sixteen bits, the second use of the tied weight
    if gradients == torch.bfloat16:
        added = padded_elements(hosted.program.layout.by_name["embed.weight"].numel)
    staged = torch.cat(list(device._staging.values()))
    assert int((staged != -7).sum()) == added


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
    assert torch.equal(hosted.store.gradients, plain.store.gradients)
