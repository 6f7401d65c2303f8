"""From a run file to a replica that trains: data, model, program, device. Knows no peers."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from atom import __version__
from atom.base.errors import ConfigError, DeviceError, MismatchError
from atom.base.units import format_bytes
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.config.sources import text_sources
from atom.graph.ir import Program
from atom.graph.program import build_program, compile_program
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.graph.verify import verify_against_eager
from atom.models.data.dataset import Dataset, open_dataset
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.adamw import AdamWSettings
from atom.optim.rate import RateSettings
from atom.swap.device import CpuDevice, Device
from atom.swap.host_store import host_bytes
from atom.training.replica import Replica, ReplicaSettings

PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SHRINK_LAYERS = 2
"""The start-up check compares this many layers of the model with the eager module."""
RESULT_ARENAS = 2
"""Averaged gradients held at once: the one being voted on, and the next."""
GPU_SHARE = 0.9
"""Of the free device memory, where the peer file names no cap: the rest is the driver's."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Recipe:
    """A run's model, traced and named, before any memory for weights is spent."""

    run: RunFile
    config: GPT3Config
    graph: Graph
    graph_hash: str
    program_hash: str
    """Source hash at the finest cut: what the manifest carries and every joiner compares."""
    versions: tuple[tuple[str, str], ...]


def open_data(
    run: RunFile, peer: PeerFile, run_folder: Path | None, cache: Path, progress: Progress
) -> Dataset:
    """Tokenises (once) and maps the run's text; a stranger's run gives no `run_folder`.

    Raises: ConfigError.
    """
    sources = text_sources(run, peer, run_folder)
    try:
        return open_dataset(
            run.data.source,
            sources.paths,
            sources.tokenizer,
            validation_fraction=run.data.validation_fraction,
            sequence_tokens=run.model.sequence_tokens,
            seed=run.run.seed,
            cache_folder=cache,
            max_bytes=run.data.max_bytes,
            on_progress=progress,
        )
    except ValueError as problem:
        raise ConfigError(
            f"the run's text cannot be used: {problem}",
            "name the files under [data] paths, in the run file or in your peer file",
        ) from problem


def write_recipe(run: RunFile) -> Recipe:
    """Traces the (pinned) run's model without weights and names it. Raises: ModelError."""
    assert run.model.vocabulary_size is not None, "a pinned run knows its vocabulary"
    config = GPT3Config.build(vocabulary_size=run.model.vocabulary_size, **run.model.shape())
    graph = trace(*model_on_meta(config, run))
    program = build_program(graph)
    versions = (("atom-swarm", __version__), ("torch", torch.__version__.split("+")[0]))
    return Recipe(run, config, graph, program.graph_hash, program.source_hash, versions)


def check_recipe(
    recipe: Recipe, graph_hash: str, program_hash: str, versions: Sequence[tuple[str, str]]
) -> None:
    """Whether this installation computes what the run was founded with.

    Raises: MismatchError naming the package whose version differs, else the hash that does.
    """
    if (recipe.graph_hash, recipe.program_hash) == (graph_hash, program_hash):
        return
    wanted = dict(versions)
    for package, version in recipe.versions:
        if wanted.get(package, version) != version:
            raise MismatchError(
                f"the run was founded with {package} {wanted[package]}, here is {version}, "
                "and the sub-models come out differently",
                f"install that version: pip install '{package}=={wanted[package]}'",
            )
    raise MismatchError(
        f"the sub-models generated here have hash {recipe.program_hash[:16]}, "
        f"the run's have {program_hash[:16]}",
        "install the same version of atom and its libraries as the run's founder",
    )


def build_replica(recipe: Recipe, peer: PeerFile, dropout_seed: int, folder: Path) -> Replica:
    """Checks the program against eager, cuts it for this device, allocates the replica.

    Leaves the generated source in `folder`. Raises: DeviceError, ModelError, MemoryError.
    """
    run = recipe.run
    if peer.device.cpu_threads:
        torch.set_num_threads(peer.device.cpu_threads)
    _verify(recipe)
    device = open_device(peer.device.kind, PRECISIONS[run.model.precision])
    budget = peer.device.memory_bytes or free_device_bytes(device)
    training = build_program(recipe.graph, device_budget_bytes=budget)
    evaluation = None
    if run.model.dropout > 0:
        undropped = dataclasses.replace(recipe.config, dropout=0.0)
        graph = trace(*model_on_meta(undropped, run))
        evaluation = build_program(graph, device_budget_bytes=budget)
    _check_host_memory(training, run, peer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sub_models.py").write_text(training.source, encoding="utf-8")
    return Replica(training, evaluation, _settings(run, dropout_seed), device)


def _check_host_memory(program: Program, run: RunFile, peer: PeerFile) -> None:
    """Weights, moments, gradients and two averaged results have to fit, before any is allocated."""
    elements = program.layout.total_elements
    need = host_bytes(program.layout, PRECISIONS[run.model.precision])
    need += RESULT_ARENAS * elements * torch.float32.itemsize
    have = peer.host.memory_bytes or psutil.virtual_memory().available
    if need > have:
        raise DeviceError(
            f"a replica of this model takes {format_bytes(need)} of host memory, "
            f"here {format_bytes(have)} may be used",
            "join a run with a smaller model, or free memory (peer file: [host] memory)",
        )


def initial_values(recipe: Recipe) -> Callable[[str, tuple[int, ...]], torch.Tensor]:
    """The run's seeded round 0, parameter by parameter."""
    seed = recipe.run.run.seed
    return lambda name, shape: initial_value(recipe.config, name, shape, seed)


def open_device(kind: str, precision: torch.dtype) -> Device:
    """`auto`, `cpu`, `cuda` or `cuda:N`. Raises: DeviceError."""
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return CpuDevice()
    from atom.swap.streams import CudaDevice

    _, _, index = kind.partition(":")
    return CudaDevice(int(index or 0), precision)


def free_device_bytes(device: Device) -> int | None:
    """None: no cap, the finest cut serves as well as any (host memory is the CPU's)."""
    if device.torch_device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device.torch_device)
    return int(free * GPU_SHARE)


def model_on_meta(config: GPT3Config, run: RunFile) -> tuple[GPT3, dict[str, torch.Tensor]]:
    model = GPT3(config, device="meta", dtype=PRECISIONS[run.model.precision])
    shape = (run.batch.micro_batch_sequences, config.sequence_tokens)
    batch = {
        name: torch.zeros(shape, dtype=torch.int64, device="meta") for name in ("tokens", "targets")
    }
    return model, batch


def _verify(recipe: Recipe) -> None:
    """A two-layer shrink of the model, split at every layer, must equal the eager module."""
    layers = min(SHRINK_LAYERS, recipe.config.layers)
    small = dataclasses.replace(recipe.config, layers=layers)
    model = GPT3(small, dtype=PRECISIONS[recipe.run.model.precision])
    sequences = min(2, recipe.run.batch.micro_batch_sequences)
    generator = torch.Generator().manual_seed(0)
    shape = (sequences, small.sequence_tokens)
    batch = {
        name: torch.randint(small.vocabulary_size, shape, generator=generator)
        for name in ("tokens", "targets")
    }
    verify_against_eager(model, compile_program(model, batch), batch)


def _settings(run: RunFile, dropout_seed: int) -> ReplicaSettings:
    o = run.optimizer
    return ReplicaSettings(
        rate=RateSettings(
            learning_rate=o.learning_rate,
            final_learning_rate=o.final_learning_rate,
            warmup_rounds=o.warmup_rounds,
            decay=o.decay,
            rounds=run.run.rounds,
        ),
        adamw=AdamWSettings(betas=o.betas, epsilon=o.epsilon, weight_decay=o.weight_decay),
        clip_norm=o.clip_norm or None,
        precision=PRECISIONS[run.model.precision],
        dropout_seed=dropout_seed,
    )
