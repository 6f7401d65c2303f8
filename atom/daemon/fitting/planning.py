"""Plan this machine's part in a run: does the model fit, how is it cut, how fast is it trained.

A plan needs no weights, no text and no swarm. Its seconds come from a measurement of the model's
layers on this device, or from a table of devices (`assume`).
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from atom.base.errors import ConfigError, DeviceError, TrustError
from atom.base.files import nearest_folder
from atom.base.units import format_bytes
from atom.config.load import check_checkpoints, load_peer_file
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory, named_state_directory
from atom.config.run_file import RunFile
from atom.config.sources import text_sources
from atom.daemon.fitting.device_choice import (
    cut_arenas,
    free_host_bytes,
    has_kernels,
    peer_bytes,
    question_of_run,
    replica_arenas,
    set_arithmetic,
    usable_device_bytes,
)
from atom.daemon.fitting.profiling import profile_of, step_elements_per_s
from atom.daemon.fitting.run_variants import Recommendation, recommend, run_variants
from atom.daemon.model.devices import named_devices, open_devices
from atom.daemon.model.model_source import open_source, pin_source, source_errors
from atom.daemon.model.recipe import PRECISIONS, trace_run
from atom.daemon.model.run_optimizer import (
    gradients,
    load_run,
    optimizer,
    replica_state,
    shared_state,
    state_form,
    update_rule,
)
from atom.daemon.model.shared_text import total_bytes
from atom.daemon.state_directory import StateDirectory
from atom.graph.ir import ParameterLayout, Program
from atom.graph.profile.seconds import Profile, assume_graph, assumed_device
from atom.graph.traced import Graph
from atom.models.data.tokenizer import load_tokenizer
from atom.models.own_code import OwnCode
from atom.placement.choice import Choice, HostStep
from atom.placement.choosing import choose_each, fastest
from atom.placement.memory import PLANNED_SHARE
from atom.placement.prediction import Gain, RoundPrediction, Work, gain, predict
from atom.swap.state_form import WEIGHTS
from atom.swarm.exchange.codec import codec_named
from atom.swarm.records.manifest import SharedText

DEFAULT_NETWORK_BITS_PER_S = 100e6
DEFAULT_PEERS = 4


@dataclass(frozen=True)
class PlanRequest:
    """Arguments of `atom plan`."""

    run: Path | RunFile
    """Path of a founder's run file, or the run in a swarm's manifest."""
    peer_file: Path | None = None
    assume: str | None = None
    """Name of a device in the table, to plan for instead of this machine's device."""
    network_bits_per_s: float | None = None
    """Rate of the slowest connection; None: the limit in the peer file, or a default."""
    peers: int = DEFAULT_PEERS
    measure_again: bool = False
    """Measure this device even if a measurement is stored."""
    text: SharedText | None = None
    """Text in a swarm's manifest; None: no text comes through the swarm."""


@dataclass(frozen=True)
class HostPlan:
    """Host memory that a run needs, and how much may be used."""

    arenas: tuple[tuple[str, int], ...]
    """Pairs (purpose, bytes)."""
    have_bytes: int
    """Host memory that may be used: the limit in the peer file, or the free memory."""

    @property
    def total_bytes(self) -> int:
        return sum(size for _, size in self.arenas)


@dataclass(frozen=True)
class DiskPlan:
    """Largest size of the state directory if the disk has little space."""

    snapshot_bytes: int
    """Bytes of a snapshot, and of the next snapshot while it is written."""
    checkpoint_bytes: int
    """Bytes of the checkpoints that the peer file asks for, and of one that is being written."""
    result_bytes: int
    """Bytes of the averages of the rounds since the snapshot, and of the round in progress."""
    text_bytes: int
    """Bytes of text that comes through the swarm."""
    joiners_bytes: int
    """Bytes of older snapshots and averages, stored for joiners only if there is space."""
    have_bytes: int
    """Disk space that is free now, or already taken by such files."""

    @property
    def total_bytes(self) -> int:
        return self.snapshot_bytes + self.checkpoint_bytes + self.result_bytes + self.text_bytes


@dataclass(frozen=True)
class Plan:
    """Plan for a run on this machine."""

    run: str
    model: str
    precision: str
    parameters: int
    program: Program
    profile: Profile
    host: HostPlan
    disk: DiskPlan
    device: str
    """Names of the devices, all of one kind, separated by commas; or the assumed device."""
    rounds: int | None
    """Rounds of the run; None if it is endless."""
    choice: Choice
    work: Work
    prediction: RoundPrediction
    gain: Gain
    alone: tuple[float, ...]
    """Tokens per second of this machine alone with one device, with two, and so on.

    Each device runs passes by itself. Empty: the model does not fit a single device.
    """
    shapes: Mapping[int, float]
    """Micro-batches per second of passes, by the number of devices in a group."""
    recommendation: Recommendation

    @property
    def fits(self) -> bool:
        """True if host memory and disk suffice; a plan exists only if the model fits the device."""
        host = self.host.total_bytes <= self.host.have_bytes
        return host and self.disk.total_bytes <= self.disk.have_bytes

    @property
    def run_s(self) -> float | None:
        """Seconds of all rounds with the planned number of peers; None if the run is endless."""
        return None if self.rounds is None else self.rounds * self.prediction.round_s

    @property
    def run_alone_s(self) -> float | None:
        """Seconds of as many rounds on this machine alone; None if the run is endless."""
        return None if self.run_s is None else self.run_s * self.gain.times_alone


def plan_run(request: PlanRequest, note: Callable[[str], None]) -> Plan:
    """Plan a run from its run file and the peer file.

    Args:
        request: Arguments of `atom plan`.
        note: Receives lines of text about steps that take long and about unexpected facts.

    Raises:
        ConfigError: A file is not valid, or the vocabulary is not known.
        ModelError: The model cannot be traced or measured.
        DeviceError: The model does not fit the device. The message names the operation that needs
            most memory.
        TrustError: The run comes from a swarm and its model is its owner's code.
    """
    run, folder, peer = request.run, None, load_peer_file(request.peer_file)
    if isinstance(run, Path):
        folder, run = run.absolute().parent, load_run(run)
    check_checkpoints(peer, run)
    if request.assume is not None:
        assumed_device(request.assume, PRECISIONS[run.model.precision])  # fail early
    set_arithmetic(peer.device)
    run, graph, model = _trace(run, peer, folder)
    have_bytes = free_host_bytes(peer.host.memory_bytes)
    arenas = replica_arenas(run, graph.layout)
    left_bytes = have_bytes - sum(size for _, size in arenas)
    named = named_devices(peer.device.use)
    device, device_bytes, profile = _device(request, peer, graph, left_bytes, note)
    on_gpu = request.assume is not None or named[0].type != "cpu"
    kernels = request.assume is not None or has_kernels(named[0], note)
    sizes = device_bytes, left_bytes
    asked = question_of_run(run, graph, profile, *sizes, kernels, len(named), on_gpu)
    ways = choose_each(asked)
    choice = fastest(ways.values())
    program = choice.program(graph)
    arenas += cut_arenas(program, choice, on_gpu, gradients(run))
    work = _work(run, peer, graph, request, on_gpu)
    return Plan(
        run=run.run.name,
        model=model,
        precision=run.model.precision,
        parameters=sum(spec.numel for spec in graph.layout.specs),
        program=program,
        profile=profile,
        host=HostPlan(tuple(arenas), have_bytes),
        disk=disk_plan(run, graph, peer, _root(run, peer), request.text),
        device=device,
        rounds=run.run.rounds,
        choice=choice,
        work=work,
        prediction=predict(choice, work),
        gain=gain(choice, work),
        alone=tuple(gain(ways[1].allowing(devices=n), work).alone for n in range(1, len(named) + 1))
        if 1 in ways
        else (),
        shapes={size: 1 / way.seconds_per_micro_batch for size, way in ways.items()},
        recommendation=_recommended(choice, run, graph, work),
    )


def _trace(run: RunFile, peer: PeerFile, folder: Path | None) -> tuple[RunFile, Graph, str]:
    """Return the run as its founder pins it, its graph, and the name of its model."""
    with source_errors(run):
        run, code = _pinned(run, peer, folder)
        source = open_source(run, code)
        return run, trace_run(run, source), source.name


def _pinned(run: RunFile, peer: PeerFile, folder: Path | None) -> tuple[RunFile, OwnCode | None]:
    """Return the run with its model's source and vocabulary pinned, and the model's own code.

    Args:
        run: The run as the file or the manifest gives it.
        peer: Sources of text on this machine.
        folder: Folder of the run file; None: the run comes from a manifest and is pinned already.

    Raises:
        TrustError: The run comes from a manifest and its model is its owner's code.
    """
    if folder is None:
        if run.model.module is not None:
            said = "this run's model is code of its owner, and nothing of it is run for a plan"
            raise TrustError(
                said, "ask the owner for the run file and the code: atom plan RUN.toml"
            )
        return run, None
    run, code = pin_source(run, folder, run.model.weights == "given")
    if run.model.family is not None and run.model.vocabulary_size is None:
        run = run.changed("model", vocabulary_size=_vocabulary(run, peer, folder))
    return run, code


def _root(run: RunFile, peer: PeerFile) -> Path:
    """Return the state directory that the run would use."""
    named = named_state_directory(None, peer.state.directory)
    return named or default_state_directory(run.run.name)


def _vocabulary(run: RunFile, peer: PeerFile, folder: Path) -> int:
    """Return the vocabulary size of the founder's tokenizer, or raise ConfigError."""
    try:
        return load_tokenizer(text_sources(run, peer, folder).tokenizer).vocabulary_size
    except ValueError as problem:
        raise ConfigError(
            f"the run's vocabulary is not known: {problem}",
            "put the tokenizer in its place, or set [model] vocabulary_size",
        ) from problem


def _device(
    request: PlanRequest, peer: PeerFile, graph: Graph, left_bytes: int, note: Callable[[str], None]
) -> tuple[str, int, Profile]:
    """Measure the devices of the peer file, or look up the assumed one.

    Returns:
        The names of the devices, the bytes that may be used on each, and the profile of one.
    """
    cap = peer.device.memory_bytes
    if request.assume is not None:
        assumed = assumed_device(request.assume, graph.parameter_dtype)
        has = assumed.memory_bytes
        if cap is not None and cap > has:
            raise DeviceError(
                f"{format_bytes(cap)} of device memory are asked for; a {assumed.title} has "
                f"{format_bytes(has)}",
                "ask for less, or assume another device",
            )
        return assumed.title, cap or int(has * PLANNED_SHARE), assume_graph(graph, request.assume)
    opened = open_devices(peer.device.use, graph.parameter_dtype)
    try:
        kinds = [each.torch_device for each in opened]
        budget = cap or usable_device_bytes(kinds, left_bytes)
    finally:
        for each in opened:
            each.close()
    profile = profile_of(graph, kinds[0], note, again=request.measure_again)
    return ", ".join(map(str, kinds)), budget, profile


def _work(run: RunFile, peer: PeerFile, graph: Graph, request: PlanRequest, on_gpu: bool) -> Work:
    caps = (peer.network.upload_bits_per_s, peer.network.download_bits_per_s)
    capped = min((cap for cap in caps if cap is not None), default=DEFAULT_NETWORK_BITS_PER_S)
    numbers = graph.layout, graph.parameter_dtype, state_form(run)
    return Work(
        parameters=graph.layout.trained_elements,
        round_sequences=run.batch.global_sequences,
        micro_batch_sequences=run.batch.micro_batch_sequences,
        sequence_tokens=1 if run.data.source == "module" else run.model.sequence_tokens,
        peers=request.peers,
        inner_sequences=run.update.inner_sequences,
        step=HostStep(step_elements_per_s(optimizer(run), *numbers), step_bytes(run, graph.layout)),
        network_bytes_per_s=(request.network_bits_per_s or capped) / 8,
        gradient_element_bytes=number_bytes(run),
        steps_beside=on_gpu,
    )


def step_bytes(run: RunFile, layout: ParameterLayout) -> float:
    """Return the bytes of host memory that an optimizer step reads and writes per parameter."""
    state = sum(each.size_bytes for each in replica_state(run, layout).values())
    copied = not state_form(run).splits and run.model.precision != "float32"
    copy_bytes = PRECISIONS[run.model.precision].itemsize if copied else 0
    return 2 * state / layout.trained_elements + copy_bytes + gradients(run).itemsize


def work_of_variant(work: Work, run: RunFile) -> Work:
    """Return the work with the batch, update rule and codec of `run`; peers and rates stay."""
    return replace(
        work,
        round_sequences=run.batch.global_sequences,
        inner_sequences=run.update.inner_sequences,
        gradient_element_bytes=number_bytes(run),
    )


def _recommended(choice: Choice, run: RunFile, graph: Graph, work: Work) -> Recommendation:
    offered = list(run_variants(run, work.peers))
    rounds = [predict(choice, work_of_variant(work, each)) for each in offered]
    own_bytes = peer_bytes(run, graph.layout)
    more_bytes = [peer_bytes(each, graph.layout) - own_bytes for each in offered]
    return recommend(offered, [each.utilisation for each in rounds], more_bytes)


def number_bytes(run: RunFile) -> float:
    """Return the bytes per averaged number on the network with the run's codec."""
    return codec_named(run.swarm.codec).wire_bytes(2**20) / 2**20


def disk_plan(
    run: RunFile, graph: Graph, peer: PeerFile, root: Path, text: SharedText | None
) -> DiskPlan:
    """Return the sizes of files in the state directory, and the space for them.

    Args:
        run: Settings of the run.
        graph: The traced model.
        peer: Number of snapshots and checkpoints to keep.
        root: State directory; it need not exist.
        text: Text that comes through the swarm, if any.
    """
    codec = codec_named(run.swarm.codec)
    result_bytes = codec.wire_bytes(graph.layout.trained_elements)
    kept = peer.state.snapshots
    state = shared_state(run, graph.layout)
    state_bytes = sum(each.size_bytes for each in state.values())
    weight_bytes = sum(each.size_bytes for name, each in state.items() if name in WEIGHTS)
    wished = peer.checkpoints
    checkpoints = (wished.keep if wished.every_rounds else 0) + wished.best
    own_bytes = update_rule(run).saved_bytes(replica_state(run, graph.layout))
    frozen = graph.layout.total_elements - graph.layout.trained_elements
    frozen_bytes = frozen * graph.parameter_dtype.itemsize
    free_bytes = shutil.disk_usage(nearest_folder(root)).free
    return DiskPlan(
        snapshot_bytes=2 * state_bytes + 2 * own_bytes + frozen_bytes,
        checkpoint_bytes=(checkpoints + 1) * weight_bytes if checkpoints else 0,
        text_bytes=0 if text is None else total_bytes(text),
        result_bytes=(run.snapshot.every_rounds + 1) * result_bytes,
        joiners_bytes=(kept - 1) * (state_bytes + run.snapshot.every_rounds * result_bytes),
        have_bytes=free_bytes + StateDirectory(root).kept_bytes,
    )
