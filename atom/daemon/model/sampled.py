"""A model that text is sampled from: a kept run's newest snapshot, or an exported folder."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atom.base.errors import ConfigError, StorageError
from atom.config.peer_file import Sample
from atom.config.run_file import RunFile
from atom.daemon.model.kept_run import HeldWeights, KeptRun
from atom.daemon.model.kept_tokenizer import run_tokenizer
from atom.daemon.model.model_source import config_text, source_errors
from atom.daemon.model.recipe import PRECISIONS, Recipe
from atom.daemon.model.weight_files import given_values
from atom.daemon.state_directory import StateDirectory
from atom.models.data.tokenizer import JsonTokenizer, Tokenizer, tokens_of
from atom.models.hub import CONFIG
from atom.models.huggingface import HuggingFaceSource
from atom.models.huggingface_config import read_config
from atom.models.source import ModelSource, SourceError
from atom.training.replica.round_texts import MOST_TOKENS, Prompts

Note = Callable[[str], None]
_ADAPTER_CONFIG = "adapter_config.json"
_WITHOUT_POSITIONS = 1 << 20
"""Tokens that a model may be asked about that takes any number."""


@dataclass(frozen=True)
class Sampled:
    """A model, its weights, and what its tokens mean."""

    title: str
    """Which weights, for people."""
    source: ModelSource
    dtype: torch.dtype
    """It computes in that."""
    sequence_tokens: int
    """Of what it was trained on, or has positions for."""
    tokenizer: Tokenizer
    value_of: Callable[[str, tuple[int, ...]], Tensor]
    """(parameter's name, shape) → its value."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text."""
        return ends_of(self.tokenizer)

    def read(self, prompts: Sequence[str]) -> list[list[int]]:
        """As `read_prompts`."""
        known = self.source.vocabulary_size
        return read_prompts(prompts, self.tokenizer, self.sequence_tokens, known)


def ends_of(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that end a text. Bytes have none: the newline between documents is in all of them."""
    return frozenset(tokenizer.separator if tokenizer.content else ())


def read_prompts(
    prompts: Sequence[str], tokenizer: Tokenizer, sequence_tokens: int, vocabulary: int | None
) -> list[list[int]]:
    """Their tokens. Raises: ConfigError for one that cannot be asked."""
    return [
        _read(prompt, f"prompt {number}", tokenizer, sequence_tokens, vocabulary)
        for number, prompt in enumerate(prompts, 1)
    ]


def _read(
    prompt: str, which: str, tokenizer: Tokenizer, most: int, vocabulary: int | None
) -> list[int]:
    try:
        tokens = tokens_of(tokenizer, prompt)
    except ValueError as problem:
        raise ConfigError(f"{which}: {problem}", "write it otherwise") from problem
    if not tokens:
        raise ConfigError(f"{which} has no tokens", "say how the text begins")
    if len(tokens) > most:
        raise ConfigError(
            f"{which} has {len(tokens):,} tokens, and the model's sequences {most:,}",
            "shorten it: what comes before would not be looked at",
        )
    if vocabulary is not None and max(tokens) >= vocabulary:
        raise ConfigError(
            f"{which} has the token {max(tokens):,}, and the model {vocabulary:,} tokens",
            "the tokenizer is another model's",
        )
    return tokens


def wanted_prompts(
    wanted: Sample, recipe: Recipe, tokenizer_json: Path, note: Note
) -> Prompts | None:
    """Of a peer file; None: it has none, or the tokenizer is still on its way here.

    Raises: ConfigError naming what cannot be asked; StorageError for another tokenizer.
    """
    run, source = recipe.run, recipe.source
    if not wanted.prompts:
        return None
    _require_text(run)
    if run.data.tokenizer != "bytes" and not tokenizer_json.exists():
        note("[sample]: the run's tokenizer is on its way; texts are written after the next start")
        return None
    tokenizer, most = run_tokenizer(run, tokenizer_json), run.model.sequence_tokens
    try:
        tokens = read_prompts(wanted.prompts, tokenizer, most, source.vocabulary_size)
    except ConfigError as problem:
        raise ConfigError(f"sample.prompts: {problem.message}", problem.hint) from problem
    return Prompts(
        wanted.every_rounds,
        tokens,
        min(most, max(map(len, tokens)) + MOST_TOKENS - 1),
        tokenizer.vocabulary_size,
        ends_of(tokenizer),
        tokenizer.decode,
    )


def sampled_folder(folder: Path, trust: str | None, note: Note) -> Sampled:
    """Raises: StorageError if there is no model, or it is damaged; ConfigError; MismatchError;
    ModelError; TrustError for its owner's own code."""
    if StateDirectory(folder).manifest.exists():
        return _kept(folder, trust, note)
    if (folder / CONFIG).exists():
        return _exported(folder)
    if (folder / _ADAPTER_CONFIG).exists():
        raise StorageError(
            f"{folder} holds adapters alone", "export without --adapter, or name the state folder"
        )
    raise StorageError(
        f"{folder} holds neither a run nor a model",
        "name a peer's state directory, or a folder of `atom export`",
    )


def _require_text(run: RunFile) -> None:
    """Raises: ConfigError."""
    if run.data.source == "module":
        raise ConfigError(
            f"the run {run.run.name} trains on its module's own dataset, and not on text",
            "nothing can be sampled from it",
        )


def _kept(folder: Path, trust: str | None, note: Note) -> Sampled:
    kept = KeptRun.read(folder, note)
    _require_text(kept.run)
    kept.chosen()  # that there is none is said now, and not when libraries were loaded
    tokenizer = run_tokenizer(kept.run, kept.state.tokenizer)
    with source_errors(kept.run):
        source = kept.source(trust)
        layout = kept.layout(source)
        kept = KeptRun.read(folder)  # its daemon may have written newer ones meanwhile
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
    )


def _exported(folder: Path) -> Sampled:
    with _damage(folder):
        tokenizer = JsonTokenizer(folder / "tokenizer.json")
        text = config_text(folder / CONFIG)
        source = HuggingFaceSource(read_config(text), 1)
        dtype = PRECISIONS.get(json.loads(text).get("dtype"), torch.float32)
        values = given_values(source, folder)
    most = source.most_tokens or _WITHOUT_POSITIONS
    return Sampled(str(folder), source, dtype, most, tokenizer, values)


@contextmanager
def _damage(folder: Path) -> Iterator[None]:
    """Raises: ConfigError."""
    try:
        yield
    except SourceError as problem:
        raise ConfigError(f"{folder}: {problem.message}", problem.hint) from problem
