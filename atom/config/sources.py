"""Where this box reads the run's text and tokenizer.

A run file names paths of the machine that founded the run. On another machine the same names may
stand for private files, and what a peer trains on leaves traces in what it sends: paths that
came from a stranger are never opened. The volunteer says in the peer file where the text is.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from atom.base.errors import ConfigError
from atom.config.model_and_data import Data
from atom.config.peer_file import LocalData, PeerFile
from atom.config.places import table_place, text_place, tokenizer_place
from atom.config.run_file import RunFile


@dataclass(frozen=True)
class TextSources:
    """Absolute paths and globs of the text (empty for python-stdlib), and of the tokenizer."""

    paths: tuple[str, ...]
    tokenizer: str
    """"bytes", or an absolute path."""
    table: str = ""
    """For datasets: an absolute folder, or OWNER/NAME of the hub."""


def text_sources(run: RunFile, peer: PeerFile, run_folder: Path | None) -> TextSources:
    """The peer file's paths if it has any, else the run file's, relative to `run_folder`.

    `run_folder` is None for a run whose file came from a stranger. Raises: ConfigError if paths
    are then needed that the peer file does not have; it names all of them.
    """
    data, mine = run.data, peer.data
    if run_folder is None and (missing := _missing(data, mine)):
        what = ", ".join(f"data.{key}" for key in missing)
        raise ConfigError(
            f"{what}: the run {run.run.name} trains on files of its founder's machine: "
            + ", ".join(repr(path) for paths in missing.values() for path in paths),
            "get copies of them. If they lie beside your peer file (--peer), this is its [data]; "
            "else write where they are:\n" + _section(data, mine, missing),
        )
    here = run_folder or Path()  # what is taken from there is in the peer file
    paths, tokenizer, table = data.paths, data.tokenizer, data.path or ""
    if paths:
        paths = mine.paths or tuple(text_place(path, here) for path in paths)
    if tokenizer != "bytes":
        tokenizer = mine.tokenizer or tokenizer_place(tokenizer, here)
    if table:  # a hub's name is no path, but whoever owns it there chooses what it stands for
        table = mine.path or table_place(table, here)
    return TextSources(paths, tokenizer, table)


def _missing(data: Data, mine: LocalData) -> dict[str, tuple[str, ...]]:
    """What the founder names and the peer file does not, by key."""
    tokenizer = () if data.tokenizer == "bytes" else (data.tokenizer,)
    table = () if data.path is None else (data.path,)
    named = {"paths": data.paths, "path": table, "tokenizer": tokenizer}
    return {key: paths for key, paths in named.items() if paths and getattr(mine, key) is None}


def _section(data: Data, mine: LocalData, missing: dict[str, tuple[str, ...]]) -> str:
    """A whole [data] for the peer file, with what it says already: two would be no valid TOML. Of a
    stranger's path only the last part, but for a table of the hub."""
    said = mine.model_dump(mode="json", exclude_none=True)
    for key, paths in missing.items():
        on_hub = key == "path" and data.revision is not None
        copies = [path if on_hub else Path(path).name or path for path in paths]
        said[key] = copies if key == "paths" else copies[0]
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in said.items())
    return "\n".join(("[data]", *lines))
