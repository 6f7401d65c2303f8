"""Models for sampling text: the newest snapshot in a state directory, or an exported folder."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atom.base.errors import ConfigError, StorageError
from atom.config.peer_file import Sample
from atom.config.run_file import PinnedRun
from atom.daemon.model.kept_run import HeldWeights, KeptRun
from atom.daemon.model.recipe import PRECISIONS, Recipe, source_errors
from atom.daemon.model.weight_files import given_values
from atom.daemon.state_directory import StateDirectory
from atom.models.data.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer, tokens_of
from atom.models.hub import CONFIG
from atom.models.huggingface import HuggingFaceSource
from atom.models.huggingface_config import config_text, read_config
from atom.models.sampling import MOST_TOKENS, Prompts
from atom.models.source import DataError, ModelSource, SourceError

Note = Callable[[str], None]
_ADAPTER_CONFIG = "adapter_config.json"
_WITHOUT_POSITIONS = 1 << 20
"""Limit of a prompt's tokens for models without a largest number of positions."""


@dataclass(frozen=True)
class Sampled:
    """A model with its weights and its tokenizer."""

    title: str
    """Name of the weights for people, such as "round 12 of my-run"."""
    source: ModelSource
    dtype: torch.dtype
    """Dtype in which the model computes."""
    sequence_tokens: int
    """Largest number of tokens of a text: the length of the training sequences, or an exported
    model's number of positions."""
    tokenizer: Tokenizer
    value_of: Callable[[str, tuple[int, ...]], Tensor]
    """Function that returns a parameter, given its name and shape."""
    ends: frozenset[int]
    """Tokens that end a text or an answer."""

    def read(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each prompt.

        Raises:
            ConfigError: a prompt is empty, too long, or not of this model's vocabulary.
        """
        known = self.source.vocabulary_size
        return read_prompts(prompts, self.tokenizer, self.sequence_tokens, known)


def read_prompts(
    prompts: Sequence[str], tokenizer: Tokenizer, sequence_tokens: int, vocabulary: int | None
) -> list[list[int]]:
    """Return the tokens of each prompt.

    Args:
        prompts: beginnings of texts.
        tokenizer: the model's tokenizer.
        sequence_tokens: largest number of tokens of a prompt.
        vocabulary: number of tokens that the model knows; None: unknown.

    Raises:
        ConfigError: a prompt is empty, too long, or not of this model's vocabulary.
    """
    return [
        _read(prompt, f"prompt {number}", tokenizer, sequence_tokens, vocabulary)
        for number, prompt in enumerate(prompts, 1)
    ]


def _read(
    prompt: str, which: str, tokenizer: Tokenizer, most: int, vocabulary: int | None
) -> list[int]:
    try:
        tokens = tokens_of(tokenizer, prompt)
        tokens = tokenizer.border(None, prompt, tokens) + tokens
    except ValueError as problem:
        raise ConfigError(f"{which}: {problem}", "change the prompt") from problem
    if not tokens:
        raise ConfigError(f"{which} has no tokens", "write the start of a text")
    if len(tokens) > most:
        raise ConfigError(
            f"{which} has {len(tokens):,} tokens, and the model's sequences {most:,}",
            "shorten it: the model would ignore the tokens before them",
        )
    if vocabulary is not None and max(tokens) >= vocabulary:
        raise ConfigError(
            f"{which} has the token {max(tokens):,}, and the model {vocabulary:,} tokens",
            "the tokenizer belongs to another model",
        )
    return tokens


def run_tokenizer(run: PinnedRun, path: Path) -> Tokenizer:
    """Return the run's tokenizer, as the state directory keeps it.

    Args:
        run: the run.
        path: path of the run's tokenizer in the state directory; not read for bytes.

    Raises:
        StorageError: the file is missing, or is not the run's tokenizer.
    """
    if run.data.tokenizer == "bytes":
        return ByteTokenizer()
    try:
        found = JsonTokenizer(path)
        if found.digest == run.data.tokenizer_sha256:
            return found
        problem = f"{path} is not the run's tokenizer"
    except DataError as damage:
        problem = damage.message
    raise StorageError(problem, "start the daemon with the run's tokenizer: it stores a copy")


def wanted_prompts(
    wanted: Sample, recipe: Recipe, tokenizer_json: Path, note: Note
) -> Prompts | None:
    """Return the prompts of a peer file, as tokens.

    Args:
        wanted: section [sample] of the peer file.
        recipe: the run and its model.
        tokenizer_json: path of the run's tokenizer in the state directory.
        note: gets a message if the tokenizer has not arrived yet.

    Returns:
        The prompts; None if there are none, or the tokenizer has not arrived yet.

    Raises:
        ConfigError: a prompt cannot be used, or the run does not train on text.
        StorageError: the kept tokenizer is not the run's.
    """
    run, source = recipe.run, recipe.source
    if not wanted.prompts:
        return None
    _require_text(run)
    if run.data.tokenizer != "bytes" and not tokenizer_json.exists():
        note("[sample]: the tokenizer is being fetched; texts are written after the next start")
        return None
    tokenizer, most = run_tokenizer(run, tokenizer_json), run.model.sequence_tokens
    ends = frozenset(run.data.answer_ends or ())
    try:
        tokens = read_prompts(wanted.prompts, tokenizer, most, source.vocabulary_size)
    except ConfigError as problem:
        raise ConfigError(f"sample.prompts: {problem.message}", problem.hint) from problem
    return Prompts(
        wanted.every_rounds,
        tokens,
        min(most, max(map(len, tokens)) + MOST_TOKENS - 1),
        tokenizer.vocabulary_size,
        ends,
        tokenizer.decode,
    )


def sampled_folder(folder: Path, trust: str | None, note: Note) -> Sampled:
    """Return the model in a state directory or an exported folder.

    Args:
        folder: the folder.
        trust: value of `--trust`, for a run whose model is code of its owner; None: not given.
        note: gets a message before the chain is checked, which may take long.

    Raises:
        StorageError: there is no model, or its files are damaged.
        ConfigError: the model cannot be used for sampling.
        MismatchError: this installation builds another model than the run's.
        ModelError: the model cannot be traced.
        TrustError: the model is code that may not run here.
    """
    if StateDirectory(folder).manifest.exists():
        return _kept(folder, trust, note)
    if (folder / CONFIG).exists():
        return _exported(folder)
    if (folder / _ADAPTER_CONFIG).exists():
        raise StorageError(
            f"{folder} holds only adapters", "export without --adapter, or name the state directory"
        )
    raise StorageError(
        f"{folder} holds neither a run nor a model",
        "name a peer's state directory, or a folder of `atom export`",
    )


def _require_text(run: PinnedRun) -> None:
    """Raise ConfigError unless the run trains on text."""
    if run.data.source == "module":
        raise ConfigError(
            f"the run {run.run.name} trains on its module's own dataset, and not on text",
            "it has no text to sample",
        )


def _kept(folder: Path, trust: str | None, note: Note) -> Sampled:
    kept = KeptRun.read(folder, note)
    _require_text(kept.run)
    kept.chosen()  # raises now if there is none, and not only after libraries are loaded
    tokenizer = run_tokenizer(kept.run, kept.state.tokenizer)
    with source_errors(kept.run):
        source = kept.source(trust)
        layout = kept.layout(source)
        # Read again: the daemon may have replaced its snapshots while the model was traced.
        kept = KeptRun.read(folder)
        snapshot = kept.chosen()
        weights = HeldWeights(layout, kept.arenas(snapshot), kept.frozen())
    dtype = PRECISIONS[kept.run.model.precision]
    return Sampled(
        f"round {snapshot.round:,} of {kept.run.run.name}",
        source,
        dtype,
        kept.run.model.sequence_tokens,
        tokenizer,
        lambda name, shape: weights.value(name, dtype),
        frozenset(kept.run.data.answer_ends or ()),
    )


def _exported(folder: Path) -> Sampled:
    with _damage(folder):
        tokenizer = JsonTokenizer(folder / "tokenizer.json")
        text = config_text(folder / CONFIG)
        source = HuggingFaceSource(read_config(text), 1)
        dtype = PRECISIONS.get(json.loads(text).get("dtype"), torch.float32)
        values = given_values(source, folder)
    most = source.most_tokens or _WITHOUT_POSITIONS
    return Sampled(str(folder), source, dtype, most, tokenizer, values, frozenset(tokenizer.ends))


@contextmanager
def _damage(folder: Path) -> Iterator[None]:
    """Raise ConfigError in place of a SourceError: the folder is damaged, or not an export."""
    try:
        yield
    except SourceError as problem:
        raise ConfigError(f"{folder}: {problem.message}", problem.hint) from problem
