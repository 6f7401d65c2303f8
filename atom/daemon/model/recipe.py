"""Tracing, naming and checking a run's model, and setting its first values, without any peers."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import metadata

import torch

from atom.base import __version__
from atom.base.errors import MismatchError, ModelError
from atom.base.usable_memory import bounded_memory, usable_memory
from atom.config.run_file import RunFile
from atom.config.section import PRECISION_NAMES
from atom.daemon.console import Console
from atom.graph.program import compile_program
from atom.graph.trace import trace
from atom.graph.traced import Graph, drawing_place
from atom.graph.verify import (
    DEFAULT_LIMIT_BYTES,
    parameter_bytes,
    too_large_to_compare,
    verify_against_eager,
)
from atom.models.data.samples import Samples
from atom.models.installing import install_version
from atom.models.sampling import example_question, next_token_model
from atom.models.source import Batch, InitialValue, ModelSource, materialised
from atom.training.replica.replica import Replica

PRECISIONS: dict[str, torch.dtype] = {name: getattr(torch, name) for name in PRECISION_NAMES}
CHECKED_MEMORY_SHARE = 0.5
"""Largest share of the free host memory that the start-up check of a smaller model may use."""
MOST_THREADS = 8
"""Largest number of threads that compute first values: each holds one parameter in memory."""


@dataclass(frozen=True)
class Recipe:
    """A run's model, traced without memory for weights, and the identity of its computation."""

    run: RunFile
    source: ModelSource
    graph: Graph
    """Training graph, whose hash is in the manifest and compared by every joiner."""
    versions: tuple[tuple[str, str], ...]
    """(package, version) of all packages that determine the graph."""


def write_recipe(run: RunFile, source: ModelSource) -> Recipe:
    """Trace the model of a pinned run without weights.

    Args:
        run: the run, pinned.
        source: builds the model.

    Raises:
        SourceError: the model cannot be built.
        ModelError: the model cannot be traced.
    """
    graph = trace_run(run, source)
    versions = (
        ("atom-swarm", __version__),
        ("torch", torch.__version__.split("+")[0]),
        *source.packages,
    )
    return Recipe(run, source, graph, versions)


def check_recipe(recipe: Recipe, graph_hash: str, versions: Sequence[tuple[str, str]]) -> None:
    """Raise unless this installation computes the same as the founder's.

    Args:
        recipe: the model as traced here.
        graph_hash: hash of the graph in the run's manifest.
        versions: (package, version) pairs of the manifest.

    Raises:
        MismatchError: the graphs differ; the message names the first package whose version
            differs, or the hashes if all versions agree.
    """
    if recipe.graph.graph_hash == graph_hash:
        return
    refuse_versions(versions)
    raise MismatchError(
        f"the model traced here has hash {recipe.graph.graph_hash[:16]}, "
        f"the run's has {graph_hash[:16]}",
        "install the same version of atom and its libraries as the run's founder",
    )


def refuse_versions(wanted: Sequence[tuple[str, str]], because: Exception | None = None) -> None:
    """Raise if a package has another version here than the run was founded with.

    Args:
        wanted: (package, version) pairs of the run's manifest.
        because: error that the difference may explain, for the message; None: the graphs differ.

    Raises:
        MismatchError: names the first such package. Packages that are not installed do not count.
    """
    for package, version in wanted:
        here = version_here(package)
        if here is not None and here != version:
            raise MismatchError(
                f"the run was founded with {package} {version}, here is {here}, "
                + (f"and {because}" if because else "and the model comes out differently"),
                f"install that version: `{install_version(package, version)}`",
            )


def version_here(package: str) -> str | None:
    """Return the version of a package here, without its build: "2.13.0" for 2.13.0+cpu.

    Returns:
        The version; None if the package is not installed or the name is not valid.
    """
    if package == "atom-swarm":
        return __version__
    try:
        return metadata.version(package).split("+")[0]
    except (metadata.PackageNotFoundError, ValueError):
        return None


def initialise(
    replica: Replica, recipe: Recipe, console: Console, given: InitialValue | None = None
) -> None:
    """Set the trained parameters of the replica to round 0, and its optimizer's state to zero.

    Args:
        replica: the replica to set.
        recipe: the run and its model.
        console: shows the progress.
        given: values of a folder; None: values from the run's seed.

    Raises:
        SourceError: a value cannot be computed.
        ConfigError: a given value is not a number, or tied parameters differ.
    """
    _fill(replica.initialise, recipe, False, console, given)


def fill_frozen(
    replica: Replica, recipe: Recipe, console: Console, given: InitialValue | None = None
) -> None:
    """Set the frozen parameters, which no state contains. See `initialise` for the arguments."""
    _fill(replica.fill_frozen, recipe, True, console, given)


def _fill(
    fill: Callable[[InitialValue, int], None],
    recipe: Recipe,
    frozen: bool,
    console: Console,
    given: InitialValue | None,
) -> None:
    specs = [spec for spec in recipe.graph.layout.specs if spec.frozen == frozen]
    if not specs:
        return
    threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)
    several = given is not None or recipe.source.values_in_threads
    source, seed = recipe.source, recipe.run.run.seed
    value_of = source.beginning(given, seed) if given else source.initial_values(seed)
    counted = _counted(value_of, sum(spec.numel for spec in specs), console)
    fill(counted, threads if several else 1)


def _counted(value_of: InitialValue, total: int, console: Console) -> InitialValue:
    """Wrap a function of first values so that it also reports progress. Thread-safe."""
    lock, made = threading.Lock(), 0
    console.progress("making the first weights", made, total, "parameters")

    def told(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        nonlocal made
        value = value_of(name, shape)
        with lock:
            made += value.numel()
            console.progress("making the first weights", made, total, "parameters")
        return value

    return told


def trace_run(run: RunFile, source: ModelSource, training: bool = True) -> Graph:
    """Return the graph of a pinned run's model.

    Memory is bounded, unless the model is code that the user trusts: a few numbers of an owner's
    config can ask for any amount.

    Args:
        run: the run, pinned.
        source: builds the model.
        training: True for training mode, False for evaluation mode.

    Raises:
        SourceError: the model cannot be built.
        ModelError: the model cannot be traced.
    """
    with bounded_memory() if run.model.module is None else nullcontext():
        model = source.build(PRECISIONS[run.model.precision])
        return trace(model, source.example_batch(run.batch.micro_batch_sequences), training)


def verify_recipe(recipe: Recipe, samples: Samples, console: Console) -> None:
    """Check that the model's compiled program computes the same bits as the eager module.

    The smaller one of the whole model and its shrunk version is compared. A model that is too large
    for this machine's memory is not checked, and a note says so.

    Args:
        recipe: the run and its model.
        samples: the run's data, for a batch.
        console: shows notes and progress.

    Raises:
        SourceError: the model cannot be built, or cannot be trained correctly.
        ModelError: program and module differ.
    """
    run = recipe.run
    precision = PRECISIONS[run.model.precision]
    sequences = min(2, run.batch.micro_batch_sequences)
    source, too_large = _compared(recipe, precision)
    if too_large:
        console.note(too_large)
        return
    program = compile_program(source.build(precision), source.example_batch(sequences))
    source.inspect(run.run.seed)
    model = materialised(source, precision, run.run.seed)
    batch = source.checked_batch(_compared_on(samples, sequences))

    def told(done: int, total: int) -> None:
        console.progress("checking the sub-models", done, total, "runs")

    verify_against_eager(model, program, batch, told=told)


def _compared_on(samples: Samples, sequences: int) -> Batch:
    """Return a batch for the check: random tokens for text, which may not have arrived yet."""
    if not samples.vocabulary_size:
        return samples.batch(range(sequences))
    shape = sequences, samples.tokens_per_sample + 1
    seeded = torch.Generator().manual_seed(0)
    tokens = torch.randint(samples.vocabulary_size, shape, generator=seeded)
    rows = next(iter(samples.train.values())).batch([0] * sequences)
    rows |= {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
    return samples.to_batch(rows)


def _compared(recipe: Recipe, dtype: torch.dtype) -> tuple[ModelSource, str]:
    """Return the source of the model to compare, and a warning if it is too large.

    The whole model is preferred if it is not larger than the shrunk one: it also has layers that
    the shrunk model may lack.

    Raises:
        SourceError: the model cannot be built.
    """
    whole, shrunk = recipe.source, recipe.source.shrunk()
    small = min((whole, shrunk), key=lambda source: parameter_bytes(source.build(dtype)))
    limit_bytes = int(usable_memory().available_bytes * CHECKED_MEMORY_SHARE)
    limit_bytes = DEFAULT_LIMIT_BYTES if shrunk is whole else limit_bytes
    return small, too_large_to_compare(parameter_bytes(small.build(dtype)), limit_bytes)


def answering_graph(recipe: Recipe, window: int) -> Graph:
    """Return the graph that predicts the next token of a text.

    Args:
        recipe: the run and its model.
        window: largest number of tokens of the text.

    Raises:
        SourceError: the model cannot be built.
        ModelError: it cannot be traced without its loss, or then uses its parameters differently.
    """
    model = next_token_model(recipe.source, PRECISIONS[recipe.run.model.precision])
    graph = trace(model, example_question(window), training=False, gives_loss=False)
    if graph.layout != recipe.graph.layout:
        raise ModelError(
            "without its loss the model uses its parameters in another way",
            "use the same ones, in the same order, for both, or remove [sample]",
        )
    return graph


def evaluation_graph(recipe: Recipe) -> Graph | None:
    """Return the graph of the model in evaluation mode; None if it equals the training graph.

    Raises:
        SourceError: the model cannot be built.
        ModelError: in evaluation mode it cannot be traced, draws random numbers, or uses its
            parameters differently.
    """
    try:
        graph = trace_run(recipe.run, recipe.source, training=False)
    except ModelError as problem:
        hint = "see that it can be validated, or remove [validation]"
        raise ModelError(f"in evaluation mode {problem.message}", hint) from problem
    if place := drawing_place(graph):
        raise ModelError(
            f"validation would be random: the model draws numbers at {place}",
            "make it depend on self.training, as nn.Dropout does, or remove [validation]",
        )
    if graph.layout != recipe.graph.layout:
        raise ModelError(
            "in evaluation mode the model uses its parameters in another way",
            "use the same ones, in the same order, in both modes, or remove [validation]",
        )
    # The mode may change more than dropout, such as label smoothing or an extra loss.
    return None if graph.graph_hash == recipe.graph.graph_hash else graph
