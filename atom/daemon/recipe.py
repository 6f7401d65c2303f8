"""From a run and its model's source to a replica that trains: program, device. Knows no peers."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from atom import __version__
from atom.base.errors import DeviceError, MismatchError, ModelError
from atom.base.units import format_bytes
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.daemon.arranging import Hearers, arranged
from atom.daemon.device_choice import (
    cut_arenas,
    ends_alike,
    free_host_bytes,
    gradients,
    peer_bytes,
    state_form,
)
from atom.daemon.model_source import source_errors
from atom.daemon.step_share import share_text
from atom.graph.check.startup_check import (
    StartupCheck,
    Subject,
    decide_startup_check,
    parameter_bytes,
)
from atom.graph.check.verify import verify_against_eager
from atom.graph.program import build_program, compile_program
from atom.graph.trace import trace
from atom.graph.traced import Graph, source_line, with_nested
from atom.graph.tracing.effects import bind, is_random
from atom.models.data.samples import Samples
from atom.models.source import InitialValue, ModelSource, materialised
from atom.optim.adamw import AdamWSettings
from atom.optim.open_share import WantedShare
from atom.optim.rate import RateSettings
from atom.plan.choice import Choice
from atom.plan.chosen_program import chosen_program
from atom.swap.compiled import Compilation
from atom.swap.device import CpuDevice, Device
from atom.swap.voided import is_out_of_memory
from atom.training.replica import Replica, ReplicaSettings

PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
CHECKED_MEMORY_SHARE = 0.5
"""Of the free host memory, at most, for the start-up check of a smaller model."""
MOST_THREADS = 8
"""That make first values: each holds a parameter's on its way to the arena."""


@dataclass(frozen=True)
class Recipe:
    """A run's model, traced and named, before any memory for weights is spent."""

    run: RunFile
    source: ModelSource
    graph: Graph
    graph_hash: str
    program_hash: str
    """Source hash at the finest cut: what the manifest carries and every joiner compares."""
    versions: tuple[tuple[str, str], ...]


def write_recipe(run: RunFile, source: ModelSource) -> Recipe:
    """Traces the (pinned) run's model without weights and names it.

    Raises: ConfigError, ModelError.
    """
    graph = trace_run(run, source)
    program = build_program(graph)
    versions = (
        ("atom-swarm", __version__),
        ("torch", torch.__version__.split("+")[0]),
        *source.packages,
    )
    return Recipe(run, source, graph, program.graph_hash, program.source_hash, versions)


def check_recipe(
    recipe: Recipe, graph_hash: str, program_hash: str, versions: Sequence[tuple[str, str]]
) -> None:
    """Whether this installation computes what the run was founded with.

    Raises: MismatchError naming the package whose version differs, else the hash that does.
    """
    if (recipe.graph_hash, recipe.program_hash) == (graph_hash, program_hash):
        return
    refuse_versions(versions)
    raise MismatchError(
        f"the sub-models generated here have hash {recipe.program_hash[:16]}, "
        f"the run's have {program_hash[:16]}",
        "install the same version of atom and its libraries as the run's founder",
    )


def refuse_versions(wanted: Sequence[tuple[str, str]], because: Exception | None = None) -> None:
    """`wanted`: a run's (package, version) pairs. `because`: what does not work here.

    Raises: MismatchError naming the first package whose version differs here.
    """
    for package, version in wanted:
        here = _version_here(package)
        if here is not None and here != version:
            raise MismatchError(
                f"the run was founded with {package} {version}, here is {here}, "
                + (f"and {because}" if because else "and the sub-models come out differently"),
                f"install that version: pip install '{package}=={version}'",
            )


def _version_here(package: str) -> str | None:
    """None: nothing that decides a model, or not installed."""
    if package == "atom-swarm":
        return __version__
    if package == "torch":
        return torch.__version__.split("+")[0]
    try:
        return metadata.version(package) if package == "transformers" else None
    except metadata.PackageNotFoundError:
        return None


def build_replica(
    recipe: Recipe,
    samples: Samples,
    peer: PeerFile,
    dropout_seed: int,
    folder: Path,
    hearers: Hearers,
) -> Replica:
    """Checks the program against eager, cuts it for this device, allocates the replica.

    Leaves the generated source in `folder`. Raises: ConfigError, ModelError, DeviceError: for a
    budget that is too small before anything is allocated.
    """
    run, note = recipe.run, hearers.note
    if peer.device.cpu_threads:
        torch.set_num_threads(peer.device.cpu_threads)
    _require_host_memory(peer_bytes(run, recipe.graph), peer)
    _verify(recipe, samples, note)
    device = open_device(peer.device.kind, PRECISIONS[run.model.precision])
    way = arranged(run, recipe.graph, peer, device, hearers)
    choice, share = way.choice, way.share
    training = chosen_program(recipe.graph, choice)
    on_gpu = device.torch_device.type == "cuda"
    cut = cut_arenas(training, choice, on_gpu, gradients(run))
    _require_host_memory(peer_bytes(run, recipe.graph) + sum(size for _, size in cut), peer)
    evaluation = None
    if run.validation is not None and _draws(recipe.graph):
        undropped = _without_randomness(recipe)
        evaluation = build_program(undropped, ends=ends_alike(recipe.graph, undropped, choice))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sub_models.py").write_text(training.source, encoding="utf-8")
    settings = _settings(run, dropout_seed, choice)
    if peer.device.compile:
        settings = replace(settings, compilation=Compilation(hearers.uncompiled))
        note("sub-models are compiled as they are first run: the first pass takes minutes")
    if share is not None:
        note(share_text(share))
        settings = replace(settings, step_share=WantedShare(share.share, hearers.unstreamed))
    with _named_if_out_of_memory():
        return Replica(training, evaluation, settings, device)


@contextmanager
def _named_if_out_of_memory() -> Iterator[None]:
    """What was free when it was reckoned may be taken when it is wanted."""
    try:
        yield
    except Exception as failure:
        if not is_out_of_memory(failure):
            raise
        raise DeviceError(
            f"memory ran out while the replica was set up: {str(failure).partition(chr(10))[0]}",
            "other programs use it: end them, or lower [device] memory in the peer file",
        ) from failure


def _require_host_memory(need: int, peer: PeerFile) -> None:
    """`need`: bytes. Raises: DeviceError."""
    have = free_host_bytes(peer.host.memory_bytes)
    if need > have:
        raise DeviceError(
            f"a replica of this model takes {format_bytes(need)} of host memory, "
            f"here {format_bytes(have)} may be used",
            "join a run with a smaller model, or free memory (peer file: [host] memory)",
        )


def initial_values(recipe: Recipe) -> InitialValue:
    """The run's seeded round 0, parameter by parameter. Raises (the values, too): ConfigError."""
    with source_errors(recipe.run):
        value_of = recipe.source.initial_values(recipe.run.run.seed)

    def told(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        with source_errors(recipe.run):
            return value_of(name, shape)

    return told


def initialise(replica: Replica, recipe: Recipe, given: InitialValue | None = None) -> None:
    """Sets the replica to the run's round 0; `given`: the values that it begins from, else those of
    its seed. Raises: ConfigError.
    """
    threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)
    several = given is not None or recipe.source.values_in_threads
    replica.initialise(given or initial_values(recipe), threads if several else 1)


def open_device(kind: str, precision: torch.dtype) -> Device:
    """`auto`, `cpu`, `cuda` or `cuda:N`. Raises: DeviceError."""
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return CpuDevice()
    from atom.swap.streams import CudaDevice

    _, _, index = kind.partition(":")
    return CudaDevice(int(index or 0), precision)


def trace_run(run: RunFile, source: ModelSource, training: bool = True) -> Graph:
    """The graph of a pinned run's model. Raises: ConfigError, ModelError."""
    with source_errors(run):
        model = source.build(PRECISIONS[run.model.precision])
        batch = source.example_batch(run.batch.micro_batch_sequences)
    return trace(model, batch, training)


def _verify(recipe: Recipe, samples: Samples, note: Callable[[str], None]) -> None:
    """A shrink of the model, split at every layer, must equal the eager module."""
    run = recipe.run
    precision = PRECISIONS[run.model.precision]
    sequences = min(2, run.batch.micro_batch_sequences)
    with source_errors(run):
        source = recipe.source.shrunk()
        check = _startup_check(recipe, source, precision)
        if check.subject is Subject.NOTHING:
            note(check.reason)
            return
        if check.subject is Subject.WHOLE:
            source = recipe.source
        program = compile_program(source.build(precision), source.example_batch(sequences))
        source.inspect(run.run.seed)
        model = materialised(source, precision, run.run.seed)
        batch = samples.batch(range(sequences))
    verify_against_eager(model, program, batch)


def _startup_check(recipe: Recipe, shrunk: ModelSource, precision: torch.dtype) -> StartupCheck:
    """Raises: SourceError."""
    whole_bytes = parameter_bytes(recipe.source.build(precision))
    if shrunk is recipe.source:
        return decide_startup_check(whole_bytes, None)
    limit_bytes = int(psutil.virtual_memory().available * CHECKED_MEMORY_SHARE)
    shrunk_bytes = parameter_bytes(shrunk.build(precision))
    return decide_startup_check(whole_bytes, shrunk_bytes, limit_bytes)


def _without_randomness(recipe: Recipe) -> Graph:
    """The graph in evaluation mode. Raises: ModelError if it still draws random numbers."""
    graph = trace_run(recipe.run, recipe.source, training=False)
    hint = "make it depend on self.training, as nn.Dropout does, or remove [validation]"
    if place := _draws(graph):
        raise ModelError(f"validation would be random: the model draws numbers at {place}", hint)
    if graph.layout != recipe.graph.layout:
        raise ModelError("in evaluation mode the model uses its parameters in another way", hint)
    return graph


def _draws(graph: Graph) -> str:
    """Where the graph draws random numbers; empty: nowhere."""
    for call in graph.calls:
        for node in with_nested(call):
            if is_random(node) and not _drops_nothing(bind(node)):
                return source_line(node) or node.name
    return ""


def _drops_nothing(arguments: Mapping[str, Any]) -> bool:
    """Dropout in evaluation mode, or with probability 0; attention's is 0 when left out."""
    if arguments.get("train") is False:
        return True
    otherwise = 0.0 if "query" in arguments else None
    return bool(arguments.get("p", arguments.get("dropout_p", otherwise)) == 0)


def _settings(run: RunFile, dropout_seed: int, choice: Choice) -> ReplicaSettings:
    o = run.optimizer
    return ReplicaSettings(
        rate=RateSettings(
            learning_rate=o.learning_rate,
            final_learning_rate=o.final_learning_rate,
            warmup_rounds=o.warmup_rounds,
            decay=o.decay,
            rounds=run.run.rounds,
        ),
        adamw=AdamWSettings(o.betas, o.epsilon, o.weight_decay, seed=run.run.seed),
        clip_norm=o.clip_norm or None,
        precision=PRECISIONS[run.model.precision],
        arrangement=choice.arrangement,
        micro_batches=choice.micro_batches,
        dropout_seed=dropout_seed,
        state_form=state_form(run),
        gradients=gradients(run),
    )
