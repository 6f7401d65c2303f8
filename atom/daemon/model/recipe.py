"""A run's model, traced, named and checked, and the values it begins with. Knows no peers."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

import torch

from atom.base import __version__
from atom.base.errors import MismatchError, ModelError
from atom.config.run_file import RunFile
from atom.config.section import PRECISION_NAMES
from atom.daemon.console import Console
from atom.daemon.usable_memory import usable_memory
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
"""Of the free host memory, at most, for the start-up check of a smaller model."""
MOST_THREADS = 8
"""That make first values: each holds a parameter's on its way to the arena."""


@dataclass(frozen=True)
class Recipe:
    """A run's model, traced and named, before any memory for weights is spent."""

    run: RunFile
    source: ModelSource
    graph: Graph
    """Its hash is what the manifest carries and every joiner compares."""
    versions: tuple[tuple[str, str], ...]


def write_recipe(run: RunFile, source: ModelSource) -> Recipe:
    """Traces the (pinned) run's model without weights and names it.

    Raises: SourceError, ModelError.
    """
    graph = trace_run(run, source)
    versions = (
        ("atom-swarm", __version__),
        ("torch", torch.__version__.split("+")[0]),
        *source.packages,
    )
    return Recipe(run, source, graph, versions)


def check_recipe(recipe: Recipe, graph_hash: str, versions: Sequence[tuple[str, str]]) -> None:
    """Whether this installation computes what the run was founded with.

    Raises: MismatchError naming the package whose version differs, else the hashes.
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
    """`wanted`: a run's (package, version) pairs. `because`: what does not work here.

    Raises: MismatchError naming the first package whose version differs here.
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
    """Without a build's name: 2.13.0+cpu is 2.13.0. None: not installed, or no package's name."""
    if package == "atom-swarm":
        return __version__
    try:
        return metadata.version(package).split("+")[0]
    except (metadata.PackageNotFoundError, ValueError):
        return None


def initialise(
    replica: Replica, recipe: Recipe, console: Console, given: InitialValue | None = None
) -> None:
    """Sets the replica to the run's round 0; `given`: the values that it begins from, else those of
    its seed. Raises: SourceError; what `given` raises.
    """
    _fill(replica.initialise, recipe, False, console, given)


def fill_frozen(
    replica: Replica, recipe: Recipe, console: Console, given: InitialValue | None = None
) -> None:
    """The same for the frozen parameters, which are no part of a state."""
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
    """The same values; from whatever threads they are asked for, it is told how many there are."""
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
    """The graph of a pinned run's model. Raises: SourceError, ModelError."""
    model = source.build(PRECISIONS[run.model.precision])
    return trace(model, source.example_batch(run.batch.micro_batch_sequences), training)


def verify_recipe(recipe: Recipe, samples: Samples, console: Console) -> None:
    """A shrink of the model, split at every layer, must equal the eager module.

    Raises: SourceError, ModelError.
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
    """Of a text, which may be on its way, any tokens will do."""
    if not samples.vocabulary_size:
        return samples.batch(range(sequences))
    shape = sequences, samples.tokens_per_sample + 1
    seeded = torch.Generator().manual_seed(0)
    tokens = torch.randint(samples.vocabulary_size, shape, generator=seeded)
    rows = next(iter(samples.train.values())).batch([0] * sequences)
    rows |= {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
    return samples.to_batch(rows)


def _compared(recipe: Recipe, dtype: torch.dtype) -> tuple[ModelSource, str]:
    """Which model, and what is in the way. The whole one is the better witness: what only one of
    its layers does shows in it alone. It is taken where it costs no more than the shrunk one.

    Raises: SourceError.
    """
    whole, shrunk = recipe.source, recipe.source.shrunk()
    small = min((whole, shrunk), key=lambda source: parameter_bytes(source.build(dtype)))
    limit_bytes = int(usable_memory().available_bytes * CHECKED_MEMORY_SHARE)
    limit_bytes = DEFAULT_LIMIT_BYTES if shrunk is whole else limit_bytes
    return small, too_large_to_compare(parameter_bytes(small.build(dtype)), limit_bytes)


def answering_graph(recipe: Recipe, window: int) -> Graph:
    """What the model says of the next token of a text of `window` tokens at most.

    Raises: SourceError, ModelError.
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
    """None: it is the training graph.

    Raises: SourceError; ModelError if it draws random numbers, uses other parameters, or has no
    loss.
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
    # Not only dropout depends on the mode: smoothed labels or an extra loss may, too.
    return None if graph.graph_hash == recipe.graph.graph_hash else graph
