"""From a run file to a replica that trains: data, model, program, device. Knows no peers."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from atom.base.errors import ConfigError, DeviceError, MismatchError
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.graph.ir import Program
from atom.graph.program import compile_program, load
from atom.graph.verify import verify_against_eager
from atom.models.data.dataset import Dataset, open_dataset
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.adamw import AdamWSettings
from atom.optim.rate import RateSettings
from atom.swap.device import Device, open_device
from atom.training.replica import LoadedProgram, Replica, ReplicaSettings

PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SHRINK_LAYERS = 2
"""The start-up check compares this many layers of the model with the eager module."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Recipe:
    """A run's model, traced and named, before any memory for weights is spent."""

    run: RunFile
    config: GPT3Config
    graph_hash: str
    program_hash: str
    """Source hash at the finest cut: what the manifest carries and every joiner compares."""
    versions: tuple[tuple[str, str], ...]


def open_data(run: RunFile, peer: PeerFile, cache: Path, progress: Progress | None) -> Dataset:
    """Tokenises (once) and maps the run's text. Raises: ConfigError."""
    data = run.data
    paths = peer.data.paths if peer.data.paths is not None else data.paths
    try:
        return open_dataset(
            data.source,
            list(paths),
            peer.data.tokenizer or data.tokenizer,
            validation_fraction=data.validation_fraction,
            sequence_tokens=run.model.sequence_tokens,
            seed=run.run.seed,
            cache_folder=cache,
            max_bytes=data.max_bytes,
            on_progress=progress,
        )
    except ValueError as problem:
        raise ConfigError(
            f"the run's text cannot be used: {problem}",
            "name the files under [data] paths, in the run file or in your peer file",
        ) from problem


def write_recipe(run: RunFile, vocabulary_size: int) -> Recipe:
    """Traces the model without weights and names its program. Raises: ModelError."""
    config = GPT3Config.build(vocabulary_size=vocabulary_size, **run.model.shape())
    program = _compile(config, run, evaluate=False, budget_bytes=None)
    return Recipe(run, config, program.graph_hash, program.source_hash, _versions())


def check_recipe(recipe: Recipe, graph_hash: str, program_hash: str, versions: object) -> None:
    """Raises: MismatchError, naming what differs from what the run was founded with."""
    theirs = {str(k): str(v) for k, v in versions} if isinstance(versions, tuple) else {}
    for package, version in recipe.versions:
        wanted = theirs.get(package)
        if wanted != version and (recipe.graph_hash, recipe.program_hash) != (
            graph_hash,
            program_hash,
        ):
            raise MismatchError(
                f"this installation has {package} {version}, the run was founded with {wanted}, "
                "and the sub-models come out differently",
                f"install {package} {wanted}, for example: pip install '{package}=={wanted}'",
            )
    for what, ours, wanted in (
        ("graph", recipe.graph_hash, graph_hash),
        ("program", recipe.program_hash, program_hash),
    ):
        if ours != wanted:
            raise MismatchError(
                f"the {what} generated here has hash {ours[:16]}, the run's is {wanted[:16]}",
                "install the same version of atom as the peer that founded the run",
            )


def build_replica(recipe: Recipe, peer: PeerFile, dropout_seed: int, folder: Path) -> Replica:
    """Checks the program against eager, cuts it for this device, allocates the replica.

    Leaves the generated source in `folder`. Raises: DeviceError, ModelError, MemoryError.
    """
    run = recipe.run
    if peer.device.cpu_threads:
        torch.set_num_threads(peer.device.cpu_threads)
    _verify(recipe)
    device = _open_device(peer, recipe)
    budget = peer.device.memory_bytes or device.free_bytes()
    training = _compile(recipe.config, run, evaluate=False, budget_bytes=budget)
    loaded = LoadedProgram(training, load(training, folder))
    evaluation = None
    if run.model.dropout > 0:
        program = _compile(recipe.config, run, evaluate=True, budget_bytes=budget)
        evaluation = LoadedProgram(program, load(program, folder / "evaluation"))
    return Replica(loaded, evaluation, _settings(run, dropout_seed), device)


def initial_values(recipe: Recipe) -> Callable[[str, tuple[int, ...]], torch.Tensor]:
    """The run's seeded round 0, parameter by parameter."""
    seed = recipe.run.run.seed
    return lambda name, shape: initial_value(recipe.config, name, shape, seed)


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


def _open_device(peer: PeerFile, recipe: Recipe) -> Device:
    device = open_device(peer.device.kind)
    precision = recipe.run.model.precision
    if precision == "bfloat16" and device.torch_device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device.torch_device)
        if major < 8:
            raise DeviceError(
                "this GPU has no bfloat16, which the run computes in",
                "join a run with precision float16 or float32",
            )
    return device


def _compile(
    config: GPT3Config, run: RunFile, *, evaluate: bool, budget_bytes: int | None
) -> Program:
    model = _meta_model(config, run)
    model.train(not evaluate)
    batch = _example(config, run.batch.micro_batch_sequences)
    return compile_program(model, batch, device_budget_bytes=budget_bytes)


def _meta_model(config: GPT3Config, run: RunFile) -> GPT3:
    return GPT3(config, device="meta", dtype=PRECISIONS[run.model.precision])


def _example(config: GPT3Config, sequences: int) -> dict[str, torch.Tensor]:
    shape = (sequences, config.sequence_tokens)
    return {
        "tokens": torch.zeros(shape, dtype=torch.int64, device="meta"),
        "targets": torch.zeros(shape, dtype=torch.int64, device="meta"),
    }


def _verify(recipe: Recipe) -> None:
    """A two-layer shrink of the model, split at every layer, must equal the eager module."""
    import dataclasses

    small = dataclasses.replace(recipe.config, layers=min(SHRINK_LAYERS, recipe.config.layers))
    model = GPT3(small, dtype=PRECISIONS[recipe.run.model.precision])
    sequences = min(2, recipe.run.batch.micro_batch_sequences)
    generator = torch.Generator().manual_seed(0)
    shape = (sequences, small.sequence_tokens)
    batch = {
        name: torch.randint(small.vocabulary_size, shape, generator=generator)
        for name in ("tokens", "targets")
    }
    program = compile_program(model, batch)
    verify_against_eager(model, program, batch)


def _versions() -> tuple[tuple[str, str], ...]:
    from atom import __version__

    return (("atom-swarm", __version__), ("torch", torch.__version__.split("+")[0]))


def digest_of_text(text: str) -> str:
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()
