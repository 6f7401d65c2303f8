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
from atom.daemon.console import Console
from atom.daemon.fitting.device_choice import (
    allowed_bytes,
    choice_text,
    cut_arenas,
    free_host_bytes,
    has_kernels,
    peer_bytes,
    question_of_run,
    set_arithmetic,
    usable_device_bytes,
)
from atom.daemon.fitting.profiling import profile_or_guess
from atom.daemon.model.devices import open_devices
from atom.daemon.model.recipe import (
    PRECISIONS,
    Recipe,
    answering_graph,
    evaluation_graph,
    verify_recipe,
)
from atom.daemon.model.run_optimizer import (
    gradients,
    new_update_rule,
    optimizer,
    rate_settings,
    state_form,
)
from atom.daemon.usable_memory import usable_memory
from atom.graph.profile.seconds import Profile
from atom.models.data.samples import Samples
from atom.placement.choice import Choice
from atom.placement.choosing import choose
from atom.swap.voided import is_out_of_memory
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.replica.round_texts import Prompts


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

    The traced program is checked against eager execution before the model is cut. The checks for
    enough memory come before the replica is allocated; memory can still run out later if other
    programs take it.

    Args:
        recipe: Run and traced model.
        samples: Samples of the run, for the check.
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
    have_bytes, need_bytes = free_host_bytes(cap_bytes), peer_bytes(run, graph.layout)
    require_host_memory(need_bytes, have_bytes, cap_bytes)
    verify_recipe(recipe, samples, console)
    allowed = allowed_bytes(peer.device.memory_bytes)
    devices = open_devices(peer.device.use, PRECISIONS[run.model.precision], allowed)
    named = [each.torch_device for each in devices]
    kind = named[0]
    evaluation = evaluation_graph(recipe) if run.validation is not None else None

    def measuring(done: int, total: int) -> None:
        # A note has already said what is measured and why, so the progress line does not repeat it.
        console.progress("layers measured", done, total, "layers")

    profile = profile_or_guess(graph, kind, note, measuring)
    choice = _choose(recipe, profile, peer, named, have_bytes, has_kernels(kind, note))
    answers = None if prompts is None else answering_graph(recipe, prompts.window)
    training = choice.program(graph)
    evaluating, answering = (
        None if each is None else choice.program_alike(each, graph)
        for each in (evaluation, answers)
    )
    beyond = cut_arenas(training, choice, kind.type == "cuda", gradients(run))
    require_host_memory(need_bytes + sum(size for _, size in beyond), have_bytes, cap_bytes)
    note(choice_text(choice))
    _leave_source(training.source, folder)
    with _named_if_out_of_memory():
        settings = _settings(recipe, choice, dropout_seed)
        device, *beside = devices
        replica = Replica(
            training, evaluating, settings, device, answering=answering, beside=beside, told=note
        )
    if unlocked_bytes := sum(each.unlocked_bytes for each in devices):
        told = format_bytes(unlocked_bytes)
        note(f"the driver does not lock {told} of host memory: copies of it are slower")
    return replica


def _choose(
    recipe: Recipe,
    profile: Profile,
    peer: PeerFile,
    devices: Sequence[torch.device],
    have_bytes: int,
    kernels: bool,
) -> Choice:
    """Choose how the devices run the model.

    Args:
        recipe: Run and traced model.
        profile: Seconds of the model's layers on a device.
        peer: Limits of this peer.
        devices: All devices, of one kind.
        have_bytes: Host memory that the peer may use.
        kernels: True if the GPU can take optimizer steps.

    Raises:
        DeviceError: The model does not fit.
        ShortageError: The model would fit without other programs.
    """
    run, graph, cap_bytes = recipe.run, recipe.graph, peer.device.memory_bytes

    def choice(host_bytes: int, alone: bool) -> Choice:
        left_bytes = host_bytes - peer_bytes(run, graph.layout)
        device_bytes = cap_bytes or usable_device_bytes(devices, left_bytes, alone)
        sizes = device_bytes, left_bytes
        on_gpu = devices[0].type == "cuda"
        return choose(question_of_run(run, graph, profile, *sizes, kernels, len(devices), on_gpu))

    try:
        return choice(have_bytes, alone=False)
    except DeviceError as problem:
        if cap_bytes is not None:
            raise
        try:
            choice(peer.host.memory_bytes or usable_memory().total_bytes, alone=True)
        except DeviceError:
            raise problem from None
        raise ShortageError(
            f"{problem.message}; other programs have the rest", "end them, then try again"
        ) from problem


def _settings(recipe: Recipe, choice: Choice, dropout_seed: int) -> ReplicaSettings:
    run, o = recipe.run, recipe.run.optimizer
    return ReplicaSettings(
        rate=rate_settings(run),
        optimizer=optimizer(run),
        update_rule=new_update_rule(run),
        clip_norm=o.clip_norm or None,
        precision=PRECISIONS[run.model.precision],
        arrangement=choice.arrangement,
        micro_batches=choice.micro_batches,
        dropout_seed=dropout_seed,
        state_form=state_form(run),
        gradients=gradients(run),
    )


def _leave_source(source: str, folder: Path) -> None:
    """Write the generated source for people to read; do nothing if it cannot be written."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sub_models.py").write_text(source, encoding="utf-8")


@contextmanager
def _named_if_out_of_memory() -> Iterator[None]:
    """Raise ShortageError if memory runs out in the body.

    Other programs may have taken memory since the check.
    """
    try:
        yield
    except Exception as failure:
        if not is_out_of_memory(failure):
            raise
        raise ShortageError(
            f"memory ran out while the replica was set up: {str(failure).partition(chr(10))[0]}",
            "other programs use it: end them, or lower [device] memory in the peer file",
        ) from failure


def require_host_memory(need_bytes: int, have_bytes: int, cap_bytes: int | None) -> None:
    """Check that a replica fits the host's memory.

    Args:
        need_bytes: Host memory of the replica.
        have_bytes: Host memory that may be used.
        cap_bytes: Limit in the peer file; None: `have_bytes` is the memory that is free now.

    Raises:
        DeviceError: The memory is too small.
        ShortageError: This machine has enough memory, but other programs use it.
    """
    if need_bytes <= have_bytes:
        return
    takes = f"a replica of this model takes {format_bytes(need_bytes)} of host memory, here "
    total_bytes = usable_memory().total_bytes
    if cap_bytes is None and need_bytes <= total_bytes:
        raise ShortageError(
            f"{takes}{format_bytes(have_bytes)} of {format_bytes(total_bytes)} are free",
            "end other programs, then try again",
        )
    raise DeviceError(
        f"{takes}{format_bytes(have_bytes)} may be used",
        "join a run with a smaller model, or free memory (peer file: [host] memory)",
    )
