"""Plan this machine's part in a run: does the model fit, how is it cut, how fast is it trained.

A plan needs no weights, no text and no swarm. Its seconds come from a measurement of the model's
layers on this device, or from a table of devices (`assume`).

A plan also recommends the update rule and codec with which the run suits a connection. The rule
every-step is synchronous training, and its loss is known. Local steps need more sequences per round
and make the loss somewhat worse (docs/local-steps.md). So they are for slow connections, on which
nothing else leaves enough time for passes.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from atom.base.errors import ConfigError, DeviceError, StorageError
from atom.base.units import format_bytes
from atom.config.load import normalised_run_text, run_from_text
from atom.config.model_and_data import Model
from atom.config.peer_file import PeerFile
from atom.config.run_file import EVERY_STEP, LOCAL_STEPS, RunFile
from atom.graph.costs.seconds import Profile, assume_graph, assumed_device, live_graph
from atom.graph.ir import ParameterLayout, Program
from atom.graph.traced import Graph
from atom.plan.choice import Choice, HostStep
from atom.plan.choosing import Question, choose_each, fastest
from atom.plan.devices import has_kernels, named_devices, require_devices, usable_device_bytes
from atom.plan.footprint import (
    Footprint,
    average_element_bytes,
    step_element_bytes,
    trained_element_bytes,
)
from atom.plan.memory import PLANNED_SHARE
from atom.plan.prediction import Gain, RoundPrediction, Work, gain, predict
from atom.plan.profiling import profile_of, profile_or_guess, step_elements_per_s
from atom.swarm.exchange.codec import codec_named
from atom.swarm.records.manifest import SharedText
from atom.training.replica.device_engines import MAX_MICRO_BATCHES_PER_PASS
from atom.training.run_optimizer import ReplicaTerms

DEFAULT_NETWORK_BITS_PER_S = 100e6
DEFAULT_PEERS = 4
SYNCHRONOUS_CODECS = ("float32", "bfloat16", "int8")
"""Codecs for the rule every-step, least error first; its loss with int4 has not been compared."""
LOCAL_CODECS = ("int4", "sparse")
"""Codecs for local steps, whose loss was as with float32 (docs/local-steps.md)."""
ENOUGH = 0.9
"""Fraction of time in passes from which more speed is not worth a risk to the loss."""
INNER_STEPS = 30
"""Inner steps of each peer per round if the run file has none, as in published runs."""


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
    live: Sequence["LivePasses"] = ()
    """Passes of the peers that run on this machine; none with `assume`."""
    dialable: int | None = None
    """Number of peers that other peers can dial; None: unknown."""
    guesses: bool = False
    """Use typical rates if measuring this device would take long."""
    rounds_done: int = 0
    """Rounds of the run that the swarm has committed."""


class LivePasses(NamedTuple):
    """Passes of a peer that runs on this machine."""

    sequences_per_s: float
    """Speed during its passes."""
    of: tuple[Model, int, tuple[str, ...]]
    """Model, size of micro-batches and names of devices, which determine the speed."""


@dataclass(frozen=True)
class Recommendation:
    """Recommended variant of a run."""

    run: RunFile
    utilisation: float
    """Fraction of the time in which passes run."""
    reason: str
    """Reason for the recommendation, one sentence."""

    @property
    def keys(self) -> dict[str, str | int]:
        """Keys of the run file that a founder sets for this variant, with their values."""
        run, inner = self.run, self.run.update.inner_sequences
        keys: dict[str, str | int] = {"rule": run.update.rule, "codec": run.swarm.codec}
        keys["global_sequences"] = run.batch.global_sequences
        return keys if inner is None else keys | {"inner_sequences": inner}


@dataclass(frozen=True)
class Plan:
    """Plan for a run on this machine."""

    run: RunFile
    """The run, pinned."""
    model: str
    """Name of the model."""
    parameters: int
    program: Program
    profile: Profile
    footprint: Footprint
    device: str
    """Names of the devices, all of one kind, separated by commas; or the assumed device."""
    choice: Choice
    work: Work
    prediction: RoundPrediction
    gain: Gain
    with_one_dialable: Gain
    """Speeds if other peers can dial only one: a founder whose volunteers are behind routers."""
    alone: tuple[float, ...]
    """Tokens per second of this machine alone with one device, with two, and so on.

    Each device runs passes by itself. Empty: the model does not fit a single device.
    """
    shapes: Mapping[int, float]
    """Micro-batches per second of passes, by the number of devices in a group."""
    recommendation: Recommendation
    rounds_done: int
    """Rounds of the run that the swarm has committed; 0 for a run file."""

    @property
    def rounds_left(self) -> int | None:
        """Rounds of the run that are still to come; None if the run is endless."""
        rounds = self.run.run.rounds
        return None if rounds is None else max(rounds - self.rounds_done, 0)

    @property
    def run_s(self) -> float | None:
        """Seconds of `rounds_left` with the planned number of peers; None if it is None."""
        left = self.rounds_left
        return None if left is None else left * self.prediction.round_s

    @property
    def run_alone_s(self) -> float | None:
        """Seconds of `rounds_left` if this machine trains alone; None if it is None."""
        return None if self.run_s is None else self.run_s * self.gain.times_alone


def require_room(plan: Plan) -> None:
    """Check that the plan fits into host memory and disk, so that scripts get an exit code.

    Raises:
        DeviceError: Host memory is too small.
        StorageError: The disk is too small.
    """
    host, disk = plan.footprint.host, plan.footprint.disk
    if host.total_bytes > host.have_bytes:
        raise DeviceError(
            f"this run needs {format_bytes(host.total_bytes)} of host memory; "
            f"there are {format_bytes(host.have_bytes)}",
            "free memory (top lists its users), or choose a smaller model; to plan for another "
            'machine, set its size in a peer file: [host] memory = "128 GB"',
        )
    if disk.total_bytes > disk.have_bytes:
        raise StorageError(
            f"this run needs {format_bytes(disk.total_bytes)} of disk; "
            f"there are {format_bytes(disk.have_bytes)}",
            "choose a larger disk: [state] directory in the peer file; or ask the owner for more "
            "frequent snapshots",
        )


@dataclass(frozen=True)
class Room:
    """Devices and memory that a run may use on this machine."""

    device_bytes: int
    """Memory that may be used on each device."""
    host_bytes: int
    """Host memory not taken by the replica; negative: the replica does not fit."""
    devices: int
    on_gpu: bool
    """True if the devices are GPUs. CPU devices share the host's cores, so they form no groups."""
    has_kernels: bool
    """True if a device can take optimizer steps. This counts only with one device."""


def question_of_run(
    run: RunFile, terms: ReplicaTerms, graph: Graph, profile: Profile, room: Room
) -> Question:
    """Return the input of the search for a choice, for a run.

    A pass may have all micro-batches of a step that a device gets if this peer trains alone. In a
    swarm a device may get fewer.

    Args:
        run: Settings of the run.
        terms: Terms of the run's replicas.
        graph: The traced model.
        profile: Seconds of its layers, and rates of the link.
        room: Devices and memory that the run may use.
    """
    step = run.update.inner_sequences or run.batch.global_sequences
    whole_step = math.ceil(step / run.batch.micro_batch_sequences)
    most = min(math.ceil(whole_step / room.devices), MAX_MICRO_BATCHES_PER_PASS)
    trains = room.has_kernels and room.devices == 1
    limits = {
        "gradient_element_bytes": terms.gradients.itemsize,
        "trained_element_bytes": trained_element_bytes(terms) if trains else 0,
        "devices": room.devices,
    }
    asked = Question.of(graph, profile, room.device_bytes, most, room.host_bytes, **limits)
    return replace(asked, step_micro_batches=whole_step if room.on_gpu else None)


def plan_traced(
    request: PlanRequest,
    run: RunFile,
    graph: Graph,
    model: str,
    peer: PeerFile,
    footprint: Footprint,
    note: Callable[[str], None],
) -> Plan:
    """Plan a run whose model is traced.

    Args:
        request: Arguments of `atom plan`.
        run: The run, pinned.
        graph: The run's model, traced.
        model: Name of the model.
        peer: Devices and limits of this machine.
        footprint: What the run needs with any cut.
        note: Receives lines of text about steps that take long and about unexpected facts.

    Raises:
        ModelError: The model cannot be measured.
        DeviceError: The model does not fit the device. The message names the operation that needs
            most memory.
    """
    terms = ReplicaTerms.of(run, graph.layout)
    named = tuple(map(str, named_devices(peer.device.use)))
    asked, host = (run.model, run.batch.micro_batch_sequences, named), footprint.host
    live = next((each for each in request.live if each.of == asked), None)
    if live is not None:  # its memory is the memory that the plan counts
        host = replace(host, have_bytes=host.have_bytes + host.total_bytes)
        footprint = replace(footprint, host=host)
    device, room, profile = _device(request, peer, graph, host.left_bytes, note, live)
    ways = choose_each(question_of_run(run, terms, graph, profile, room))
    if live is not None:
        planned_s = fastest(ways.values()).seconds_per_micro_batch
        live_s = run.batch.micro_batch_sequences / live.sequences_per_s
        profile = live_graph(graph, torch.device(live.of[2][0]), profile, live_s / planned_s)
        ways = choose_each(question_of_run(run, terms, graph, profile, room))
    choice = fastest(ways.values())
    program = choice.program(graph)
    work = _work(run, terms, peer, request, room.on_gpu)
    alone = range(1, room.devices + 1) if 1 in ways else ()
    return Plan(
        run=run,
        model=model,
        parameters=sum(spec.numel for spec in graph.layout.specs),
        program=program,
        profile=profile,
        footprint=footprint.with_cut(program, choice, terms.gradients, room.on_gpu),
        device=device,
        choice=choice,
        work=work,
        prediction=predict(choice, work),
        gain=gain(choice, work),
        with_one_dialable=gain(choice, replace(work, dialable=1)),
        alone=tuple(gain(ways[1].allowing(devices=n), work).alone for n in alone),
        shapes={size: 1 / way.seconds_per_micro_batch for size, way in ways.items()},
        rounds_done=request.rounds_done,
        recommendation=_recommended(
            choice, run, graph.layout, replace(work, dialable=work.dialable or 1)
        ),
    )


def _device(
    request: PlanRequest,
    peer: PeerFile,
    graph: Graph,
    left_bytes: int,
    note: Callable[[str], None],
    live: LivePasses | None,
) -> tuple[str, Room, Profile]:
    """Measure the devices of the peer file, or look up the assumed one.

    Nothing is measured while a peer with the same model and devices runs here.

    Returns:
        The names of the devices, the memory that may be used on each, and the profile of one.
    """
    cap = peer.device.memory_bytes
    if request.assume is not None:
        assumed = assumed_device(request.assume, graph.parameter_dtype)
        has = assumed.memory_bytes
        if cap is not None and cap > has:
            raise DeviceError(
                f"{format_bytes(cap)} of device memory are asked for; a {assumed.title} has "
                f"{format_bytes(has)}",
                "lower that, or assume another device",
            )
        count = len(named_devices(peer.device.use))
        room = Room(cap or int(has * PLANNED_SHARE), left_bytes, count, True, True)
        return assumed.title, room, assume_graph(graph, request.assume)
    devices = require_devices(peer.device.use, graph.parameter_dtype)
    device_bytes = cap or usable_device_bytes(devices, left_bytes, alone=live is not None)
    if live is not None:
        profile = profile_or_guess(graph, devices[0], lambda text: None, patience_s=0.0)
    elif request.guesses:
        profile = profile_or_guess(graph, devices[0], note)
    else:
        profile = profile_of(graph, devices[0], note, again=request.measure_again)
    on_gpu, kernels = devices[0].type == "cuda", has_kernels(devices[0], note)
    room = Room(device_bytes, left_bytes, len(devices), on_gpu, kernels)
    return ", ".join(map(str, devices)), room, profile


def _work(
    run: RunFile, terms: ReplicaTerms, peer: PeerFile, request: PlanRequest, on_gpu: bool
) -> Work:
    caps = (peer.network.upload_bits_per_s, peer.network.download_bits_per_s)
    capped = min((cap for cap in caps if cap is not None), default=DEFAULT_NETWORK_BITS_PER_S)
    return Work(
        parameters=terms.layout.trained_elements,
        round_sequences=run.batch.global_sequences,
        micro_batch_sequences=run.batch.micro_batch_sequences,
        sequence_tokens=1 if run.data.source == "module" else run.model.sequence_tokens,
        peers=request.peers,
        inner_sequences=run.update.inner_sequences,
        step=HostStep(step_elements_per_s(terms), step_element_bytes(terms)),
        network_bytes_per_s=(request.network_bits_per_s or capped) / 8,
        gradient_element_bytes=average_element_bytes(terms.codec),
        steps_beside=on_gpu,
        dialable=request.dialable,
    )


def _recommended(
    choice: Choice, run: RunFile, layout: ParameterLayout, work: Work
) -> Recommendation:
    offered, shares = list(run_variants(run, work.peers)), list[float]()
    for each in offered:
        variant = replace(
            work,
            round_sequences=each.batch.global_sequences,
            inner_sequences=each.update.inner_sequences,
            gradient_element_bytes=average_element_bytes(codec_named(each.swarm.codec)),
        )
        shares.append(predict(choice, variant).utilisation)
    all_terms = (ReplicaTerms.of(each, layout) for each in (run, *offered))
    own_bytes, *host_bytes = (Footprint.of(terms, 0).host.total_bytes for terms in all_terms)
    return recommend(offered, shares, [each - own_bytes for each in host_bytes])


def run_variants(run: RunFile, peers: int) -> Iterator[RunFile]:
    """Yield the valid variants of a run: pairs of update rule and codec.

    Variants whose loss is nearest to that of synchronous training in float32 come first: every-step
    with one codec after another, then local steps. All variants have the same number of sequences
    per optimizer step, counted over the whole swarm.

    Args:
        run: The run to vary.
        peers: Number of peers, which share the sequences of a step.
    """
    whole, inner = run.batch.global_sequences, run.update.inner_sequences
    if inner is None:
        step, inner = whole, -(-whole // peers)
        whole = INNER_STEPS * peers * inner
    else:
        step = min(inner * peers, whole)
    for codec in SYNCHRONOUS_CODECS:
        yield from _variant(run, codec, step, {"rule": EVERY_STEP})
    outer = run.update.model_dump(exclude_unset=True)
    local = outer | {"rule": LOCAL_STEPS, "inner_sequences": inner}
    for codec in LOCAL_CODECS:
        yield from _variant(run, codec, whole, local)


def _variant(run: RunFile, codec: str, sequences: int, update: dict[str, Any]) -> Iterator[RunFile]:
    content = json.loads(normalised_run_text(run))
    content["update"] = update
    content["swarm"]["codec"] = codec
    content["batch"]["global_sequences"] = max(sequences, run.batch.micro_batch_sequences)
    try:
        yield run_from_text(json.dumps(content))
    except ConfigError:
        return


def recommend(
    offered: Sequence[RunFile], shares: Sequence[float], more_host_bytes: Sequence[int]
) -> Recommendation:
    """Recommend the first variant in which passes take at least `ENOUGH` of the time.

    If there is no such variant, recommend the one with the largest share.

    Args:
        offered: Variants of a run, as `run_variants` orders them.
        shares: Fraction of the time in which passes run, by variant.
        more_host_bytes: Difference in host memory between each variant and the run itself.
    """
    enough = (n for n, share in enumerate(shares) if share >= ENOUGH)
    best = next(enough, shares.index(max(shares)))
    reason = f"passes take {shares[best]:.0%} of the time on this line"
    if best:
        before = max(range(best), key=lambda n: shares[n])
        instead = f"{offered[before].update.rule} with {offered[before].swarm.codec}"
        reason = f"{reason}, and {shares[before]:.0%} by {instead}"
    if more_host_bytes[best] > 0:
        reason = f"{reason}; needs {format_bytes(more_host_bytes[best])} more host memory"
    return Recommendation(offered[best], shares[best], f"{reason}.")
