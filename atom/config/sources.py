"""Where this box reads the run's text and tokenizer.

A run file names paths of the machine that founded the run. On another machine the same names may
stand for private files, and what a peer trains on leaves traces in what it sends: paths that
came from a stranger are never opened. The volunteer says in the peer file where the text is.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.base.errors import ConfigError
from atom.config.model_and_data import Data, TextSource
from atom.config.peer_file import LocalData, LocalSource, PeerFile
from atom.config.places import table_place, text_place, tokenizer_place
from atom.config.run_file import RunFile


@dataclass(frozen=True)
class TextPlace:
    """Where a text is; empty for python-stdlib."""

    paths: tuple[str, ...] = ()
    """Absolute paths and globs."""
    table: str = ""
    """For datasets: an absolute folder, or OWNER/NAME of the hub."""


@dataclass(frozen=True)
class TextSources:
    """Where all texts are."""

    texts: Mapping[str, TextPlace]
    """As `Data.texts`."""
    tokenizer: str
    """"bytes", or an absolute path."""


def text_sources(run: RunFile, peer: PeerFile, run_folder: Path | None) -> TextSources:
    """The peer file's paths if it has any, else the run file's, relative to `run_folder`.

    `run_folder` is None for a run whose file came from a stranger. Raises: ConfigError if paths
    are then needed that the peer file does not have, all of which it names; or if the peer file has
    a text that the run does not have.
    """
    data, mine = run.data, peer.data
    if unknown := sorted(mine.sources.keys() - data.sources.keys()):
        known = ", ".join(data.sources) or "one text only: its place belongs under [data]"
        what = f"data.sources.{unknown[0]}: the run {run.run.name} has no such text"
        raise ConfigError(what, f"it has {known}")
    if run_folder is None and (missing := _missing(data, mine)):
        named = [f"{_section_of(name)}.{key}" for name, key in missing]
        raise ConfigError(
            f"{', '.join(named)}: the run {run.run.name} trains on files of its founder's machine: "
            + ", ".join(repr(path) for paths in missing.values() for path in paths),
            "get copies of them. If they lie beside your peer file (--peer), this is its [data]; "
            "else write where they are:\n" + _section(data, mine, missing),
        )
    here = run_folder or Path()  # what is taken from there is in the peer file
    is_file = data.tokenizer != "bytes"
    tokenizer = (is_file and mine.tokenizer) or tokenizer_place(data.tokenizer, here)
    texts = {name: _place(text, _mine(mine, name), here) for name, text in data.texts.items()}
    return TextSources(texts, tokenizer)


def names_a_copy(data: Data, mine: LocalData) -> bool:
    """Whether the peer file says where any of the run's texts is."""
    own = [(text, _mine(mine, name)) for name, text in data.texts.items()]
    return any((text.paths and at.paths) or (text.path and at.path) for text, at in own)


def _mine(mine: LocalData, name: str) -> LocalSource:
    return mine.sources.get(name, LocalSource()) if name else mine


def _place(text: TextSource, mine: LocalSource, here: Path) -> TextPlace:
    paths, table = text.paths, text.path or ""
    if paths:
        paths = mine.paths or tuple(text_place(path, here) for path in paths)
    if table:  # a hub's name is no path, but whoever owns it there chooses what it stands for
        table = mine.path or table_place(table, here)
    return TextPlace(paths, table)


def _missing(data: Data, mine: LocalData) -> dict[tuple[str, str], tuple[str, ...]]:
    """What the founder names and the peer file does not, by text and key."""
    tokenizer = () if data.tokenizer == "bytes" or mine.tokenizer else (data.tokenizer,)
    missing: dict[tuple[str, str], tuple[str, ...]] = {}
    for name, text in data.texts.items():
        local = _mine(mine, name)
        missing[name, "paths"] = () if local.paths else text.paths
        missing[name, "path"] = () if local.path or text.path is None else (text.path,)
    missing["", "tokenizer"] = tokenizer
    return {place: paths for place, paths in missing.items() if paths}


def _section_of(name: str) -> str:
    return f"data.sources.{name}" if name else "data"


def _section(data: Data, mine: LocalData, missing: dict[tuple[str, str], tuple[str, ...]]) -> str:
    """A whole [data] for the peer file, with what it says already: two would be no valid TOML. Of a
    stranger's path only the last part, but for a table of the hub."""
    own = mine.model_dump(mode="json", by_alias=True, exclude_none=True)
    said: dict[str, dict[str, Any]] = {**own.pop("sources"), "": own}
    for (name, key), paths in missing.items():
        on_hub = key == "path" and data.texts[name].revision is not None
        copies = [path if on_hub else Path(path).name or path for path in paths]
        said.setdefault(name, {})[key] = copies if key == "paths" else copies[0]
    lines = list[str]()
    for name, values in sorted(said.items()):
        lines += [f"[{_section_of(name)}]"] if values else []
        lines += [f"{key} = {json.dumps(each, ensure_ascii=False)}" for key, each in values.items()]
    return "\n".join(lines)
