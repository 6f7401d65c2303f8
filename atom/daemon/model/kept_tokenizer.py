"""The run's tokenizer, kept in the state directory, and as `transformers` wants it in a folder."""

import json
import shutil
from pathlib import Path
from typing import Any

from atom.base.errors import ConfigError, StorageError
from atom.config.run_file import RunFile
from atom.config.sources import TextSources
from atom.daemon.state_directory import write_atomically
from atom.models.data.tokenizer import JsonTokenizer, byte_level_tokenizer
from atom.models.source import DataError

FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
COMPANIONS = (SETTINGS, "special_tokens_map.json", "generation_config.json", "chat_template.jinja")
"""What a folder may have besides, and a run that begins from it keeps."""


def keep_tokenizer(kept: Path, run: RunFile, sources: TextSources) -> None:
    """Copies the tokenizer.json of the (pinned) run into the folder `kept`.

    Raises: ConfigError for another one than made the tokens: tokenising takes long, and meanwhile
    the file may have been replaced; StorageError.
    """
    if run.data.source == "module" or sources.tokenizer == "bytes":
        return
    try:
        found = JsonTokenizer(Path(sources.tokenizer))
    except DataError as problem:
        raise ConfigError(f"data.tokenizer: {problem}", problem.hint) from problem
    if found.digest != run.data.tokenizer_sha256:
        raise ConfigError(
            f"data.tokenizer: {sources.tokenizer} was replaced while the text was tokenised",
            "put the first one back and start again: its tokens are kept",
        )
    _keep(found.content, kept / FILE)


def keep_companions(kept: Path, folder: Path) -> None:
    """Copies what lies beside the tokenizer of a folder of weights. Raises: StorageError."""
    for name in COMPANIONS:
        if (folder / name).is_file():
            keep_file(folder / name, kept / name)


def keep_file(path: Path, kept: Path) -> None:
    """Raises: StorageError."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise StorageError(
            f"cannot copy {path} to {kept}: {problem.strerror}", "check the rights of both"
        ) from problem
    _keep(content, kept)


def _keep(content: bytes, kept: Path) -> None:
    """Raises: StorageError."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise StorageError(
            f"cannot make {kept.parent}: {problem.strerror}", "check its rights"
        ) from problem
    write_atomically(kept, content)


def write_tokenizer(folder: Path, run: RunFile, kept: Path) -> None:
    """Into a folder of weights, as far as the run has a tokenizer.

    Raises: OSError; StorageError for a kept one that is not the run's.
    """
    if run.data.source == "module":
        return
    if run.data.tokenizer == "bytes":
        (folder / FILE).write_text(byte_level_tokenizer(), encoding="utf-8")
    elif (kept / FILE).is_file():
        _check_kept(kept / FILE, run)
    for name in (FILE, *COMPANIONS):
        if (kept / name).is_file():
            shutil.copyfile(kept / name, folder / name)
    if (folder / FILE).exists() and not (folder / SETTINGS).exists():
        text = json.dumps(_settings(folder / FILE, run), indent=2) + "\n"
        (folder / SETTINGS).write_text(text, encoding="utf-8")


def _check_kept(path: Path, run: RunFile) -> None:
    try:
        if JsonTokenizer(path).digest == run.data.tokenizer_sha256:
            return
        problem = f"{path} is not the run's tokenizer"
    except DataError as damage:
        problem = damage.message
    raise StorageError(problem, "start the daemon with the run's tokenizer: it keeps it again")


def end_of_text(folder: Path) -> int | None:
    """The token with which a text ends, by the tokenizer in this folder. Raises: DataError."""
    if not (folder / FILE).exists():
        return None
    return next(iter(JsonTokenizer(folder / FILE).separator), None)


def _settings(tokenizer: Path, run: RunFile) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.model.sequence_tokens,
        "clean_up_tokenization_spaces": False,
    }
    separator = JsonTokenizer(tokenizer).separator_text
    return settings if separator is None else {**settings, "eos_token": separator}
