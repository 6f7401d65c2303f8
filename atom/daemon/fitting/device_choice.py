"""Limits of this machine's devices and host for a run's model, and a summary of the choice."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from atom.base.errors import DeviceError
from atom.base.units import format_bytes
from atom.config.peer_file import Device
from atom.config.run_file import RunFile
from atom.daemon.model.run_optimizer import (
    gradients,
    optimizer,
    replica_state,
    state_form,
    update_rule,
)
from atom.daemon.usable_memory import usable_memory
from atom.graph.ir import ParameterLayout, Program
from atom.graph.profile.seconds import Profile
from atom.graph.traced import Graph
from atom.optim.optimizer import Optimizer, store_bytes
from atom.placement.choice import Choice
from atom.placement.choosing import Question
from atom.placement.memory import PLANNED_SHARE, Limits
from atom.swap.device_kernels import device_kernels
from atom.swap.device_slots import staging_bytes, waiting_elements
from atom.swap.host_store import beside_bytes
from atom.swap.state_form import HIGH, LOW, MASTER, StateForm
from atom.swarm.exchange.codec import codec_named
from atom.training.replica.settings import MAX_MICRO_BATCHES_PER_PASS

HOST_SHARE = 0.5
"""Fraction of the host memory not taken by the replica that all CPU devices may use together.

The remainder is for other programs.
"""
BOUNDARY_SHARE = 0.8
"""Fraction of the host memory not taken by the replica that offloaded values may use."""
LEAST_HOST_BYTES = 256 << 20
"""Least memory that a CPU device may use, in bytes."""
WEIGHT_TITLES = {MASTER: "master weights", HIGH: "high halves", LOW: "low halves"}


def question(
    graph: Graph,
    profile: Profile,
    device_bytes: int,
    micro_batches: int,
    host_left_bytes: int = -1,
    gradients: torch.dtype = torch.float32,
    trained_element_bytes: int = 0,
    devices: int = 1,
    step_micro_batches: int | None = None,
) -> Question:
    """Return the input of the search for a choice.

    Args:
        graph: The traced model.
        profile: Seconds of its layers, and rates of the link.
        device_bytes: Memory that may be used on each device.
        micro_batches: Most micro-batches of one pass.
        host_left_bytes: Host memory not taken by the replica. If negative, the replica does not
            fit, and offloaded values are not limited: the caller only reports that.
        gradients: Dtype of gradients on the copy to the host.
        trained_element_bytes: See `Limits`.
        devices: Number of devices.
        step_micro_batches: See `Question`.
    """
    element_bytes = graph.parameter_dtype.itemsize
    waits_bytes = int(host_left_bytes * BOUNDARY_SHARE / devices) if host_left_bytes >= 0 else None
    limits = Limits(
        device_bytes,
        element_bytes,
        micro_batches,
        waits_bytes,
        gradients.itemsize,
        trained_element_bytes,
        devices,
    )
    return replace(Question.of(graph, profile, limits), step_micro_batches=step_micro_batches)


def question_of_run(
    run: RunFile,
    graph: Graph,
    profile: Profile,
    device_bytes: int,
    host_left_bytes: int,
    has_kernels: bool,
    devices: int = 1,
    on_gpu: bool = False,
) -> Question:
    """Return the input of the search for a choice, for a run.

    A pass may have all micro-batches of a step that a device gets if this peer trains alone. In a
    swarm a device may get fewer.

    Args:
        run: Settings of the run.
        graph: The traced model.
        profile: Seconds of its layers, and rates of the link.
        device_bytes: Memory that may be used on each device.
        host_left_bytes: Host memory not taken by the replica; negative: the replica does not fit.
        has_kernels: True if the device can take optimizer steps. This counts only with one device.
        devices: Number of devices.
        on_gpu: True if the devices are GPUs. CPU devices share the host's cores, so they form no
            groups.
    """
    step = run.update.inner_sequences or run.batch.global_sequences
    whole_step = math.ceil(step / run.batch.micro_batch_sequences)
    most = min(math.ceil(whole_step / devices), MAX_MICRO_BATCHES_PER_PASS)
    leaving, trained = gradients(run), 0
    if has_kernels and devices == 1 and update_rule(run).same_steps and leaving == torch.float32:
        trained = trained_element_bytes(optimizer(run), graph, state_form(run))
    sizes, together = (device_bytes, most, host_left_bytes), whole_step if on_gpu else None
    return question(graph, profile, *sizes, leaving, trained, devices, together)


def trained_element_bytes(optimizer: Optimizer, graph: Graph, form: StateForm) -> int:
    """Return `Limits.trained_element_bytes`: 0 if the optimizer cannot take steps on a device."""
    if not optimizer.steps_on_devices:
        return 0
    layout, dtype = graph.layout, graph.parameter_dtype
    frozen_bytes = (layout.total_elements - layout.trained_elements) * dtype.itemsize
    state_bytes = store_bytes(optimizer, layout, dtype, form) - frozen_bytes
    return -(-state_bytes // max(layout.trained_elements, 1))


def has_kernels(device: torch.device, note: Callable[[str], None]) -> bool:
    """Return True if the device can take optimizer steps; note the reason if a GPU cannot."""
    if device.type != "cuda":
        return False
    try:
        device_kernels(device)
    except DeviceError as problem:
        note(f"nothing is trained on the device: {problem.message}")
        return False
    return True


def choice_text(choice: Choice) -> str:
    """Return a summary of the choice, one line for the log of a daemon."""
    count, kept = len(choice.cut.pieces), len(choice.arrangement.kept)
    resident = len(choice.arrangement.resident)
    stays = "all of it stays" if resident == count else f"{resident} stay, {kept} not recomputed"
    if choice.arrangement.trained:
        stays += f", {len(choice.arrangement.trained)} are trained there"
    if choice.cut.matrix_parts:
        stays += f", matrices in parts: {len(choice.cut.matrix_parts)}"
    waiting = f" and {format_bytes(choice.host_bytes)} on the host" if choice.host_bytes else ""
    budget = format_bytes(choice.cut.limits.device_bytes)
    checkpoints = ", its own checkpoints left out" if choice.cut.remembers else ""
    where = "in each group" if choice.groups > 1 else "in a group"
    of_several = f", on each of {choice.devices} devices" if choice.devices > 1 else ""
    if choice.group_devices > 1:
        of_several = f", {where} of {choice.group_devices} devices"
    return (
        f"{count} sub-model{'' if count == 1 else 's'} on the device ({stays}{checkpoints}), "
        f"{format_bytes(choice.memory.total_bytes)} of {budget}{waiting}, "
        f"up to {choice.micro_batches} micro-batch"
        f"{'' if choice.micro_batches == 1 else 'es'} per pass"
        f"{of_several}"
    )


def replica_arenas(run: RunFile, layout: ParameterLayout) -> list[tuple[str, int]]:
    """Return the host memory that a peer needs with any cut, as pairs (purpose, bytes)."""
    precision, form = getattr(torch, run.model.precision), state_form(run)
    rule = update_rule(run)
    arenas = [
        (WEIGHT_TITLES.get(name, f"optimizer's {name}"), arena.size_bytes)
        for name, arena in replica_state(run, layout).items()
    ]
    narrow = " in bfloat16" if run.optimizer.gradients == "bfloat16" else ""
    elements = layout.trained_elements
    codec = codec_named(run.swarm.codec)
    arenas += [
        ("what the device loads", beside_bytes(layout, precision, form)),
        (f"gradients{narrow}", gradients(run).itemsize * elements),
        # the result that is voted on, and the next one
        ("averages, as they travel", 2 * codec.wire_bytes(elements)),
        ("update rule's own", rule.own_bytes(layout, keeps_lost=codec.given_back > 0)),
    ]
    return [(what, size) for what, size in arenas if size > 0]


def peer_bytes(run: RunFile, layout: ParameterLayout) -> int:
    """Return the bytes of host memory that a peer needs with any cut (see `replica_arenas`)."""
    return sum(size for _, size in replica_arenas(run, layout))


def cut_arenas(
    program: Program, choice: Choice, on_gpu: bool, leaving: torch.dtype
) -> list[tuple[str, int]]:
    """Return the additional host memory for a cut, as pairs (purpose, bytes).

    Args:
        program: Program with this cut.
        choice: Cut, arrangement and number of devices.
        on_gpu: True if the devices are GPUs.
        leaving: Dtype of gradients on the copy to the host.
    """
    lands_bytes = choice.devices * staging_bytes(program, leaving) if on_gpu else 0
    waits = waiting_elements(program, program.parameter_dtype) if choice.groups > 1 else {}
    lands_bytes += choice.groups * sum(waits.values()) * leaving.itemsize
    arenas = [
        ("gradients on their way from the device", lands_bytes),
        ("values between sub-models", choice.devices * choice.host_bytes),
    ]
    return [(what, size) for what, size in arenas if size > 0]


def set_arithmetic(device: Device) -> None:
    """Set threads and determinism of PyTorch in this process, as the peer file says.

    Call it before anything is computed on a GPU.
    """
    if device.cpu_threads:
        torch.set_num_threads(device.cpu_threads)
    if device.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at first use
        filling = torch.utils.deterministic
        filling.fill_uninitialized_memory = False  # type: ignore[attr-defined] # nothing reads it
        torch.use_deterministic_algorithms(True, warn_only=True)


def allowed_bytes(planned_bytes: int | None) -> int | None:
    """Return the GPU memory that PyTorch may take if a plan fills `planned_bytes` of it.

    None means that there is no limit.
    """
    return None if planned_bytes is None else math.ceil(planned_bytes / PLANNED_SHARE)


def usable_device_bytes(
    devices: Sequence[torch.device], host_left_bytes: int, alone: bool = False
) -> int:
    """Return the memory that a plan may use on each device if the peer file sets no limit.

    On GPUs it follows from the GPU with least memory that is free or unused in PyTorch's allocator.
    On a CPU it follows from the host memory that the replica leaves.

    Args:
        devices: All devices, of one kind.
        host_left_bytes: Host memory not taken by the replica.
        alone: Assume that no other program uses the GPUs. On a CPU it has no effect; the caller
            passes a larger `host_left_bytes` instead.
    """
    if devices[0].type == "cuda":
        return min(_usable_gpu_bytes(device, alone) for device in devices)
    return max(int(host_left_bytes * HOST_SHARE / len(devices)), LEAST_HOST_BYTES)


def _usable_gpu_bytes(device: torch.device, alone: bool) -> int:
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int((total if alone else free + unused) * PLANNED_SHARE)


def free_host_bytes(cap: int | None) -> int:
    """Return the limit in the peer file (`cap`), or the free host memory if there is no limit."""
    return cap or usable_memory().available_bytes
