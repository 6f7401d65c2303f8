"""Build a replica from a recipe: measure the model, cut it for this machine's devices, allocate.

Nothing here communicates with peers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from atom.base.errors import DeviceError, ShortageError
from atom.base.units import format_bytes
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.daemon.console import Console
from atom.daemon.model.recipe import Recipe, answering_graph, evaluation_graph, verify_recipe
from atom.daemon.usable_memory import usable_memory
from atom.graph.costs.seconds import Profile
from atom.models.data.samples import Samples
from atom.models.sampling import Prompts
from atom.plan.choice import Choice
from atom.plan.choosing import choose
from atom.plan.devices import (
    free_host_bytes,
    has_kernels,
    open_devices,
    set_arithmetic,
    usable_device_bytes,
)
from atom.plan.footprint import Footprint, HostMemory
from atom.plan.planning import Room, question_of_run
from atom.plan.profiling import profile_or_guess
from atom.swap.voided import PassVoided, voided_by_memory
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.run_optimizer import ReplicaTerms, new_update_rule, rate_settings


def build_replica(
    recipe: Recipe,
    samples: Samples,
    peer: PeerFile,
    dropout_seed: int,
    folder: Path,
    console: Console,
    prompts: Prompts | None = None,
) -> Replica:
    """Build the replica of a run; its state is not initialised yet.

    The checks for enough memory come before the replica is allocated; memory can still run out
    later if other programs take it.

    Args:
        recipe: Run and traced model.
        samples: Data of the run, for the check that the program computes what the model does.
        peer: Devices and limits of this peer.
        dropout_seed: Seed of this peer's dropout.
        folder: Folder for the generated source.
        console: Receives progress and notes.
        prompts: Prompts of the texts that the replica writes during training; None: it writes none.

    Raises:
        ConfigError: The run file or the peer file asks for something impossible.
        ModelError: The program differs from eager execution.
        DeviceError: This machine has too little memory.
        ShortageError: This machine has enough memory, but other programs use it.
    """
    set_arithmetic(peer.device)
    run, graph, note = recipe.run, recipe.graph, console.note
    cap_bytes = peer.host.memory_bytes
    terms = ReplicaTerms.of(run, graph.layout)
    footprint = Footprint.of(terms, free_host_bytes(cap_bytes))
    require_host_memory(footprint.host, cap_bytes)
    verify_recipe(recipe, samples, console)
    evaluation = evaluation_graph(recipe) if run.validation is not None else None
    devices = open_devices(peer.device.use, terms.precision, peer.device.memory_bytes)
    named = [each.torch_device for each in devices]
    kind = named[0]

    def measuring(done: int, total: int) -> None:
        # A note has already said what is measured and why, so the progress line does not repeat it.
        console.progress("layers measured", done, total)

    profile = profile_or_guess(graph, kind, note, measuring)
    kernels, left_bytes = has_kernels(kind, note), footprint.host.left_bytes
    choice = _choose(recipe, terms, profile, peer, named, kernels, left_bytes)
    answers = None if prompts is None else answering_graph(recipe, prompts.window)
    training = choice.program(graph)
    evaluating, answering = (
        None if each is None else choice.program_alike(each, graph)
        for each in (evaluation, answers)
    )
    footprint = footprint.with_cut(training, choice, terms.gradients, kind.type == "cuda")
    require_host_memory(footprint.host, cap_bytes)
    note(choice.summary)
    _leave_source(training.source, folder)
    with _short_of_memory():
        settings = _settings(run, terms, choice, dropout_seed)
        device, *beside = devices
        replica = Replica(
            training, evaluating, settings, device, answering=answering,
            extra_devices=beside, on_message=note,
        )  # fmt: skip
    if unlocked_bytes := sum(each.unlocked_bytes for each in devices):
        told = format_bytes(unlocked_bytes)
        note(f"the driver does not lock {told} of host memory: copies of it are slower")
    return replica


def _choose(
    recipe: Recipe,
    terms: ReplicaTerms,
    profile: Profile,
    peer: PeerFile,
    devices: Sequence[torch.device],
    kernels: bool,
    left_bytes: int,
) -> Choice:
    """Choose how the devices run the model.

    Args:
        recipe: Run and traced model.
        terms: Terms of the replica.
        profile: Seconds of the model's layers on a device.
        peer: Limits of this peer.
        devices: All devices, of one kind.
        kernels: True if the GPU can take optimizer steps.
        left_bytes: Host memory that the replica leaves.

    Raises:
        DeviceError: The model does not fit.
        ShortageError: The model would fit without other programs.
    """
    cap_bytes = peer.device.memory_bytes

    def choice(left_bytes: int, alone: bool) -> Choice:
        device_bytes = cap_bytes or usable_device_bytes(devices, left_bytes, alone)
        on_gpu = devices[0].type == "cuda"
        room = Room(device_bytes, left_bytes, len(devices), on_gpu, kernels)
        return choose(question_of_run(recipe.run, terms, recipe.graph, profile, room))

    try:
        return choice(left_bytes, alone=False)
    except DeviceError as problem:
        if cap_bytes is not None:
            raise
        have_bytes = peer.host.memory_bytes or usable_memory().total_bytes
        try:
            choice(Footprint.of(terms, have_bytes).host.left_bytes, alone=True)
        except DeviceError:
            raise problem from None
        raise ShortageError(
            f"{problem.message}; other programs use the remaining memory",
            "end them, then try again",
        ) from problem


def _settings(
    run: RunFile, terms: ReplicaTerms, choice: Choice, dropout_seed: int
) -> ReplicaSettings:
    return ReplicaSettings(
        rate=rate_settings(run),
        optimizer=terms.optimizer,
        update_rule=new_update_rule(run),
        clip_norm=run.optimizer.clip_norm or None,
        precision=terms.precision,
        arrangement=choice.arrangement,
        micro_batches=choice.micro_batches,
        dropout_seed=dropout_seed,
        state_form=terms.form,
        gradients=terms.gradients,
    )


def _leave_source(source: str, folder: Path) -> None:
    """Write the generated source for people to read; do nothing if it cannot be written."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sub_models.py").write_text(source, encoding="utf-8")


@contextmanager
def _short_of_memory() -> Iterator[None]:
    """Raise ShortageError if memory runs out in the body.

    Other programs may have taken memory since the check.
    """
    try:
        with voided_by_memory():
            yield
    except PassVoided as void:
        raise ShortageError(
            f"memory ran out while the replica was set up: {void.detail}",
            "end other programs, or lower [device] memory in the peer file",
        ) from void


def require_host_memory(host: HostMemory, cap_bytes: int | None) -> None:
    """Check that a replica fits the host's memory.

    Args:
        host: Host memory of the replica, and how much may be used.
        cap_bytes: Limit in the peer file; None: the memory that is free now may be used.

    Raises:
        DeviceError: The memory is too small.
        ShortageError: This machine has enough memory, but other programs use it.
    """
    if host.left_bytes >= 0:
        return
    need, have = format_bytes(host.total_bytes), format_bytes(host.have_bytes)
    takes = f"a replica of this model takes {need} of host memory, here {have}"
    total_bytes = usable_memory().total_bytes
    if cap_bytes is None and host.total_bytes <= total_bytes:
        raise ShortageError(
            f"{takes} of {format_bytes(total_bytes)} are free", "end other programs, then try again"
        )
    raise DeviceError(
        f"{takes} may be used",
        "join a run with a smaller model, or free memory (peer file: [host] memory)",
    )
