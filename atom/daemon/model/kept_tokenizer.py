"""The run's tokenizer in the state directory, and its export for `transformers`."""

import json
from pathlib import Path
from typing import Any

from atom.base.errors import StorageError
from atom.config.run_file import RunFile
from atom.models.data.tokenizer import (
    ByteTokenizer,
    JsonTokenizer,
    Tokenizer,
    byte_level_tokenizer,
)
from atom.models.source import DataError


def write_tokenizer(folder: Path, run: RunFile, kept: Path) -> int | None:
    """Write the run's tokenizer into a folder of weights, if the run trains on text.

    Args:
        folder: the folder.
        run: the run, pinned.
        kept: path of the run's tokenizer in the state directory.

    Returns:
        The token that ends a text; None if there is none.

    Raises:
        OSError: the files cannot be written.
        StorageError: the kept tokenizer is not the run's.
    """
    if run.data.source == "module":
        return None
    path = folder / "tokenizer.json"
    content = run_tokenizer(run, kept).content or byte_level_tokenizer().encode()
    path.write_bytes(content)
    tokenizer = JsonTokenizer(path)
    text = json.dumps(_settings(tokenizer, run), indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return next(iter(tokenizer.separator), None)


def run_tokenizer(run: RunFile, path: Path) -> Tokenizer:
    """Return the tokenizer of a pinned run.

    Args:
        run: the run, pinned.
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
    raise StorageError(problem, "start the daemon with the run's tokenizer: it keeps it again")


def _settings(tokenizer: JsonTokenizer, run: RunFile) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.model.sequence_tokens,
        "clean_up_tokenization_spaces": False,
    }
    separator = tokenizer.separator_text
    return settings if separator is None else {**settings, "eos_token": separator}
