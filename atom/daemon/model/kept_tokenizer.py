"""The run's tokenizer, kept in the state directory, and as `transformers` wants it in a folder."""

import json
import shutil
from pathlib import Path
from typing import Any

from atom.base.errors import StorageError
from atom.config.run_file import RunFile
from atom.config.sources import TextSources
from atom.daemon.state_directory import write_atomically
from atom.models.data.byte_level import byte_level_tokenizer
from atom.models.data.tokenizer import JsonTokenizer, separator_in

FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
COMPANIONS = (SETTINGS, "special_tokens_map.json", "generation_config.json", "chat_template.jinja")
"""What a folder may have besides, and a run that begins from it keeps."""


def keep_tokenizer(kept: Path, run: RunFile, sources: TextSources) -> None:
    """Copies the run's tokenizer.json into the folder `kept`. Raises: StorageError."""
    if run.data.source != "module" and sources.tokenizer != "bytes":
        keep_file(Path(sources.tokenizer), kept / FILE)


def keep_companions(kept: Path, folder: Path) -> None:
    """Copies what lies beside the tokenizer of a folder of weights. Raises: StorageError."""
    for name in COMPANIONS:
        if (folder / name).is_file():
            keep_file(folder / name, kept / name)


def keep_file(path: Path, kept: Path) -> None:
    """Raises: StorageError."""
    try:
        content = path.read_bytes()
        kept.parent.mkdir(parents=True, exist_ok=True)
        if kept.exists() and kept.read_bytes() == content:
            return
    except OSError as problem:
        raise StorageError(
            f"cannot copy {path} to {kept}: {problem.strerror}", "check the rights of both"
        ) from problem
    write_atomically(kept, content)


def write_tokenizer(folder: Path, run: RunFile, kept: Path) -> None:
    """Into a folder of weights, as far as the run has a tokenizer. Raises: OSError."""
    if run.data.source == "module":
        return
    if run.data.tokenizer == "bytes":
        (folder / FILE).write_text(byte_level_tokenizer(), encoding="utf-8")
    for name in (FILE, *COMPANIONS):
        if (kept / name).is_file():
            shutil.copyfile(kept / name, folder / name)
    if (folder / FILE).exists() and not (folder / SETTINGS).exists():
        text = json.dumps(_settings(folder / FILE, run), indent=2) + "\n"
        (folder / SETTINGS).write_text(text, encoding="utf-8")


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
    separator = separator_in(tokenizer)
    return settings if separator is None else {**settings, "eos_token": separator}
