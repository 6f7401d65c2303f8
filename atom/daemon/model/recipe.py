"""A run's model, without any peers: its source, its trace, and the checks of both."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import metadata

import torch
from torch import nn

from atom.base import __version__
from atom.base.errors import MismatchError, ModelError
from atom.config.run_file import PinnedRun
from atom.config.section import PRECISION_NAMES
from atom.daemon.console import Console
from atom.daemon.usable_memory import bounded_memory, usable_memory
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
from atom.models.gpt3 import GPT3Config, GPT3Source
from atom.models.huggingface import HuggingFaceSource
from atom.models.huggingface_config import read_config
from atom.models.module_source import ModuleSource, OwnCode
from atom.models.partly_trained import Adapters, PartlyTrained
from atom.models.sampling import example_question, next_token_model
from atom.models.source import Batch, ModelSource, install_version, materialised

PRECISIONS: dict[str, torch.dtype] = {name: getattr(torch, name) for name in PRECISION_NAMES}
CHECKED_MEMORY_SHARE = 0.5
"""Largest share of the free host memory that the start-up check of a smaller model may use."""


def open_source(run: PinnedRun, code: OwnCode | None) -> ModelSource:
    """Return the source that builds the run's model.

    Args:
        run: the run.
        code: the run's own code, which is executed: the caller has checked that it may run here.

    Raises:
        ConfigError: the model cannot be built.
    """
    whole, train = _whole_source(run, code), run.train
    if train is None:
        return whole
    adapters = Adapters(train.rank, train.alpha, train.dropout, train.targets)
    return PartlyTrained(whole, adapters)


def _whole_source(run: PinnedRun, code: OwnCode | None) -> ModelSource:
    model = run.model
    if model.huggingface is not None:
        assert model.huggingface_config is not None, "pinned when it was founded"
        has = {"target_share": run.data.learns_answers, "positions": bool(run.data.attention)}
        entries = [name for name, is_there in has.items() if is_there]
        config = read_config(model.huggingface_config)
        with bounded_memory():  # the library makes lists as long as a config says
            return HuggingFaceSource(config, model.sequence_tokens, entries)
    if model.module is not None:
        assert code is not None, "fetched before"
        sequence_tokens = None if run.data.source == "module" else model.sequence_tokens
        return ModuleSource(code, run.run.seed, sequence_tokens)
    assert model.vocabulary_size is not None, "a pinned run knows its vocabulary"
    shape = model.shape()
    return GPT3Source(GPT3Config.build(vocabulary_size=model.vocabulary_size, **shape))


@dataclass(frozen=True)
class Recipe:
    """A run's model, traced without memory for weights, and the identity of its computation."""

    run: PinnedRun
    source: ModelSource
    graph: Graph
    """Training graph, whose hash is in the manifest and compared by every joiner."""
    versions: tuple[tuple[str, str], ...]
    """(package, version) of all packages that determine the graph."""


def write_recipe(run: PinnedRun, source: ModelSource) -> Recipe:
    """Trace the model of a run without weights.

    Args:
        run: the run.
        source: builds the model.

    Raises:
        ConfigError: the model cannot be built.
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


def trace_run(run: PinnedRun, source: ModelSource, training: bool = True) -> Graph:
    """Return the graph of a run's model.

    The layout includes the parameters that the loss does not use, which are frozen. Memory is
    bounded, unless the model is code that the user trusts: a few numbers of an owner's config can
    ask for any amount.

    Args:
        run: the run.
        source: builds the model.
        training: True for training mode, False for evaluation mode.

    Raises:
        ConfigError: the model cannot be built.
        ModelError: the model cannot be traced.
    """
    with bounded_memory() if run.model.module is None else nullcontext():
        model = source.build(PRECISIONS[run.model.precision])
        graph = trace(model, source.example_batch(run.batch.micro_batch_sequences), training)
        return _keeping_all(graph, model)


def _keeping_all(graph: Graph, model: nn.Module) -> Graph:
    """Return the graph with a layout that also has the parameters that no call uses, frozen."""
    used = graph.layout.by_name
    unused = {n: tuple(p.shape) for n, p in model.named_parameters() if n not in used}
    return replace(graph, layout=graph.layout.with_frozen(unused))


def verify_recipe(recipe: Recipe, samples: Samples, console: Console) -> None:
    """Check that the model's compiled program computes the same bits as the eager module.

    The smaller one of the whole model and its shrunk version is compared. A model that is too large
    for this machine's memory is not checked, and a note says so.

    Args:
        recipe: the run and its model.
        samples: the run's data, for a batch.
        console: shows notes and progress.

    Raises:
        ConfigError: the model cannot be built, or cannot be trained correctly.
        ModelError: program and module differ.
    """
    run = recipe.run
    precision = PRECISIONS[run.model.precision]
    sequences = min(2, run.batch.micro_batch_sequences)
    batch = _compared_on(samples, sequences, recipe.source.vocabulary_size or 0)
    source, too_large = _compared(recipe, precision)
    if too_large:
        console.note(too_large)
        return
    program = compile_program(source.build(precision), source.example_batch(sequences))
    source.inspect(run.run.seed)
    model = materialised(source, precision, run.run.seed)

    def told(done: int, total: int) -> None:
        console.progress("checking the sub-models", done, total)

    verify_against_eager(model, program, batch, on_progress=told)


def _compared_on(samples: Samples, sequences: int, known: int) -> Batch:
    """Return a batch for the check: random tokens for text, which may not have arrived yet.

    If attention stays within documents, each sequence has two: for a single document the library
    makes no mask unless it is traced, and the kernel without a mask rounds differently.
    """
    if not samples.vocabulary_size:
        return samples.batch(range(sequences))
    shape = sequences, samples.tokens_per_sample + 1
    seeded = torch.Generator().manual_seed(0)
    most = min(known or samples.vocabulary_size, samples.vocabulary_size)
    tokens = torch.randint(most, shape, generator=seeded)
    rows = next(iter(samples.train.values())).batch([0] * sequences)
    rows |= {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
    if "positions" in rows:
        half = samples.tokens_per_sample // 2
        of_two = [torch.arange(half), torch.arange(samples.tokens_per_sample - half)]
        rows["positions"] = torch.cat(of_two).repeat(sequences, 1)
    return samples.to_batch(rows)


def _compared(recipe: Recipe, dtype: torch.dtype) -> tuple[ModelSource, str]:
    """Return the source of the model to compare, and a warning if it is too large.

    The whole model is preferred if it is not larger than the shrunk one: it also has layers that
    the shrunk model may lack.

    Raises:
        ConfigError: the model cannot be built.
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
        ConfigError: the model cannot be built.
        ModelError: it cannot be traced without its loss, or then uses its parameters differently.
    """
    model = next_token_model(recipe.source, PRECISIONS[recipe.run.model.precision])
    graph = trace(model, example_question(window), training=False, gives_loss=False)
    graph = _keeping_all(graph, model)
    if graph.layout != recipe.graph.layout:
        raise ModelError(
            "without its loss the model uses other parameters",
            "use the same parameters, in the same order, for both, or remove [sample]",
        )
    return graph


def evaluation_graph(recipe: Recipe) -> Graph | None:
    """Return the graph of the model in evaluation mode; None if it equals the training graph.

    Raises:
        ConfigError: the model cannot be built.
        ModelError: in evaluation mode it cannot be traced, draws random numbers, or uses its
            parameters differently.
    """
    try:
        graph = trace_run(recipe.run, recipe.source, training=False)
    except ModelError as problem:
        hint = "make validation possible, or remove [validation]"
        raise ModelError(f"in evaluation mode {problem.message}", hint) from problem
    if place := drawing_place(graph):
        raise ModelError(
            f"validation would be random: the model draws numbers at {place}",
            "make it depend on self.training, as nn.Dropout does, or remove [validation]",
        )
    if graph.layout != recipe.graph.layout:
        raise ModelError(
            "in evaluation mode the model uses other parameters",
            "use the same parameters, in the same order, in both modes, or remove [validation]",
        )
    # The mode may change more than dropout, such as label smoothing or an extra loss.
    return None if graph.graph_hash == recipe.graph.graph_hash else graph
