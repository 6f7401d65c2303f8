"""What this box would do for a run: does it fit, how is it cut, how fast would it go.

Needs no weights, no text and no swarm. Seconds come from a measurement of the model's layers on
this device, or from a table of devices (`assume`).
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
    """What `atom plan` was asked."""

    run: Path | RunFile
    """A founder's run file, or what a swarm's manifest says."""
    peer_file: Path | None = None
    assume: str | None = None
    """A device of the table instead of the one here."""
    network_bits_per_s: float | None = None
    peers: int = DEFAULT_PEERS
    measure_again: bool = False
    """Whatever is kept of this device."""
    text: SharedText | None = None
    """Of a swarm, as its manifest names it."""


@dataclass(frozen=True)
class HostPlan:
    """Host memory: flat arenas of one element per parameter (and padding)."""

    arenas: tuple[tuple[str, int], ...]
    """(what, bytes)."""
    have_bytes: int
    """The peer file's word, or what is free now."""

    @property
    def total_bytes(self) -> int:
        return sum(size for _, size in self.arenas)


@dataclass(frozen=True)
class DiskPlan:
    """The state directory at its largest, where room is short."""

    snapshot_bytes: int
    """One, and the one being written."""
    checkpoint_bytes: int
    """Weights that the peer file asks to keep, and those being written."""
    result_bytes: int
    """Averages since it, and of a round meanwhile."""
    text_bytes: int
    """Of what comes through the swarm."""
    joiners_bytes: int
    """Used besides where there is room: older states, and averages since then."""
    have_bytes: int
    """Free now, or taken by what there is of these already."""

    @property
    def total_bytes(self) -> int:
        return self.snapshot_bytes + self.checkpoint_bytes + self.result_bytes + self.text_bytes


@dataclass(frozen=True)
class Plan:
    """What a box would do for a run."""

    run: str
    model: str
    precision: str
    parameters: int
    program: Program
    profile: Profile
    host: HostPlan
    disk: DiskPlan
    device: str
    """What computes, each of one kind."""
    rounds: int | None
    """Rounds of the run; None if it is endless."""
    choice: Choice
    work: Work
    prediction: RoundPrediction
    gain: Gain
    alone: tuple[float, ...]
    """Tokens per second of this box without others, with one device, with two, and so on, each by
    itself. Empty: so it does not fit."""
    shapes: Mapping[int, float]
    """Micro-batches per second of its passes, with groups of so many devices."""
    recommendation: Recommendation

    @property
    def fits(self) -> bool:
        """The device always does, or there is no plan."""
        host = self.host.total_bytes <= self.host.have_bytes
        return host and self.disk.total_bytes <= self.disk.have_bytes

    @property
    def run_s(self) -> float | None:
        """All rounds, with these peers; None: it is endless."""
        return None if self.rounds is None else self.rounds * self.prediction.round_s

    @property
    def run_alone_s(self) -> float | None:
        """As many, of this box alone."""
        return None if self.run_s is None else self.run_s * self.gain.times_alone


def plan_run(request: PlanRequest, note: Callable[[str], None]) -> Plan:
    """Plans from the two files. `note` is told what takes long or is not as expected.

    Raises: ConfigError; ModelError; DeviceError naming the layer that does not fit the device;
    TrustError for a swarm whose model is its owner's code.
    """
    run, folder, peer = request.run, None, load_peer_file(request.peer_file)
    if isinstance(run, Path):
        folder, run = run.absolute().parent, load_run(run)
    check_checkpoints(peer, run)
    if request.assume is not None:
        assumed_device(request.assume, PRECISIONS[run.model.precision])  # told before the model is
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
    """The run as its founder pins it, its graph, and what its model is called. Raises: ConfigError,
    ModelError, TrustError."""
    with source_errors(run):
        run, code = _pinned(run, peer, folder)
        source = open_source(run, code)
        return run, trace_run(run, source), source.name


def _pinned(run: RunFile, peer: PeerFile, folder: Path | None) -> tuple[RunFile, OwnCode | None]:
    """With the model's own code. `folder`: of the run file; None: a manifest's run is pinned."""
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
    """Where the run's state would lie."""
    named = named_state_directory(None, peer.state.directory)
    return named or default_state_directory(run.run.name)


def _vocabulary(run: RunFile, peer: PeerFile, folder: Path) -> int:
    """What the founder's tokenizer would decide. Raises: ConfigError."""
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
    """What computes, how much memory of each may be used, and the seconds of one."""
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
    """What a step reads and writes in the host's memory, per parameter."""
    state = sum(each.size_bytes for each in replica_state(run, layout).values())
    copied = not state_form(run).splits and run.model.precision != "float32"
    copy_bytes = PRECISIONS[run.model.precision].itemsize if copied else 0
    return 2 * state / layout.trained_elements + copy_bytes + gradients(run).itemsize


def work_of_variant(work: Work, run: RunFile) -> Work:
    """The same peers and lines, by the rule and the codec of `run`."""
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
    """Of an averaged number on the wire."""
    return codec_named(run.swarm.codec).wire_bytes(2**20) / 2**20


def disk_plan(
    run: RunFile, graph: Graph, peer: PeerFile, root: Path, text: SharedText | None
) -> DiskPlan:
    """What there will be in the state directory `root`, and what room there is for it."""
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
