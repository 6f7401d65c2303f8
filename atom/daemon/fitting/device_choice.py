"""How this box's device would take a run's model: what it allows, and what is chosen."""

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
"""Where the device is the host: of the memory left beside the replica. The rest is for people."""
BOUNDARY_SHARE = 0.8
"""Of the host memory left beside the replica, for values between sub-models that wait there."""
LEAST_HOST_BYTES = 256 << 20
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
    """`micro_batches`: the most that one pass may accumulate. `host_left_bytes`: beside the
    replica; where not even that fits, values between sub-models take what they need: only the
    verdict matters. `gradients`: how they leave. The others: as `Limits` and `Question` have
    them."""
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
    """With as many micro-batches as each device has of a step when this peer trains alone: with
    others it may be fewer. `has_kernels`: for what is trained on the device, if there is one.
    `on_gpu`: devices that share the host's cores win nothing in a group."""
    step = run.update.inner_sequences or run.batch.global_sequences
    whole_step = math.ceil(step / run.batch.micro_batch_sequences)
    most = min(math.ceil(whole_step / devices), MAX_MICRO_BATCHES_PER_PASS)
    leaving, trained = gradients(run), 0
    if has_kernels and devices == 1 and update_rule(run).same_steps and leaving == torch.float32:
        trained = trained_element_bytes(optimizer(run), graph, state_form(run))
    sizes, together = (device_bytes, most, host_left_bytes), whole_step if on_gpu else None
    return question(graph, profile, *sizes, leaving, trained, devices, together)


def trained_element_bytes(optimizer: Optimizer, graph: Graph, form: StateForm) -> int:
    """As `Limits` has it."""
    if not optimizer.steps_on_devices:
        return 0
    layout, dtype = graph.layout, graph.parameter_dtype
    frozen_bytes = (layout.total_elements - layout.trained_elements) * dtype.itemsize
    state_bytes = store_bytes(optimizer, layout, dtype, form) - frozen_bytes
    return -(-state_bytes // max(layout.trained_elements, 1))


def has_kernels(device: torch.device, note: Callable[[str], None]) -> bool:
    """Can AdamW's steps be taken there? If a GPU cannot, that is told."""
    if device.type != "cuda":
        return False
    try:
        device_kernels(device)
    except DeviceError as problem:
        note(f"nothing is trained on the device: {problem.message}")
        return False
    return True


def choice_text(choice: Choice) -> str:
    """One line for the log of a daemon."""
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
    """Host memory that a peer takes however it cuts the model: (what, bytes)."""
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
        # the one voted on and the next
        ("averages, as they travel", 2 * codec.wire_bytes(elements)),
        ("update rule's own", rule.own_bytes(layout, keeps_lost=codec.given_back > 0)),
    ]
    return [(what, size) for what, size in arenas if size > 0]


def peer_bytes(run: RunFile, layout: ParameterLayout) -> int:
    """The sum of `replica_arenas`."""
    return sum(size for _, size in replica_arenas(run, layout))


def cut_arenas(
    program: Program, choice: Choice, on_gpu: bool, leaving: torch.dtype
) -> list[tuple[str, int]]:
    """Host memory that a cut costs, on all devices: (what, bytes). `leaving`: as what gradients
    leave."""
    lands_bytes = choice.devices * staging_bytes(program, leaving) if on_gpu else 0
    waits = waiting_elements(program, program.parameter_dtype) if choice.groups > 1 else {}
    lands_bytes += choice.groups * sum(waits.values()) * leaving.itemsize
    arenas = [
        ("gradients on their way from the device", lands_bytes),
        ("values between sub-models", choice.devices * choice.host_bytes),
    ]
    return [(what, size) for what, size in arenas if size > 0]


def set_arithmetic(device: Device) -> None:
    """Of this process, as the peer file wants it; before anything is computed on a GPU."""
    if device.cpu_threads:
        torch.set_num_threads(device.cpu_threads)
    if device.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when first used
        filling = torch.utils.deterministic
        filling.fill_uninitialized_memory = False  # type: ignore[attr-defined] # nothing reads it
        torch.use_deterministic_algorithms(True, warn_only=True)


def allowed_bytes(planned_bytes: int | None) -> int | None:
    """What PyTorch may take of a GPU, of which so much is planned; None: all."""
    return None if planned_bytes is None else math.ceil(planned_bytes / PLANNED_SHARE)


def usable_device_bytes(
    devices: Sequence[torch.device], host_left_bytes: int, alone: bool = False
) -> int:
    """Of each, where the peer file says nothing: of a GPU, what is free there or in our allocator,
    where that is least; on a CPU, what the peer leaves of the host. `alone`: were no other program
    there; on a CPU `host_left_bytes` says so."""
    if devices[0].type == "cuda":
        return min(_usable_gpu_bytes(device, alone) for device in devices)
    return max(int(host_left_bytes * HOST_SHARE / len(devices)), LEAST_HOST_BYTES)


def _usable_gpu_bytes(device: torch.device, alone: bool) -> int:
    free, total = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int((total if alone else free + unused) * PLANNED_SHARE)


def free_host_bytes(cap: int | None) -> int:
    """The peer file's word, else what is free now."""
    return cap or usable_memory().available_bytes
