"""Places on this machine from which the run's text and tokenizer are read.

A run file names paths of the machine that founded the run. On another machine the same paths may
be private files, and a peer's training text leaves traces in the gradients that it sends. So paths
from another peer are never opened: the volunteer names the text's place in the peer file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.base.errors import ConfigError
from atom.config.model_and_data import Data, TextSource
from atom.config.peer_file import LocalData, LocalSource, PeerFile
from atom.config.places import hub_place, text_place, tokenizer_place
from atom.config.run_file import RunFile


@dataclass(frozen=True)
class TextSources:
    """Places of all texts of a run, and of its tokenizer."""

    texts: Mapping[str, LocalSource]
    """Name of a text → its place, with the names and the order of `Data.texts`. Paths are absolute;
    the place of python-stdlib is empty."""
    tokenizer: str
    """"bytes", or the absolute path of a tokenizer.json."""


def text_sources(run: RunFile, peer: PeerFile, run_folder: Path | None) -> TextSources:
    """Return where to read the run's texts: the peer file's paths, else the run file's.

    Args:
        run: the run, whose relative paths start from `run_folder`.
        peer: the peer file of this machine; its paths take precedence.
        run_folder: folder of the run file; None if the run file came from another peer. Then no
            path of the run file is used.

    Raises:
        ConfigError: `run_folder` is None and the peer file lacks a path (the message names all
            missing ones), or the peer file names a text that the run does not have.
    """
    data, local = run.data, peer.data
    if unknown := sorted(local.sources.keys() - data.sources.keys()):
        known = ", ".join(data.sources) or "one text: its path belongs under [data]"
        what = f"data.sources.{unknown[0]}: the run {run.run.name} has no such text"
        raise ConfigError(what, f"it has {known}")
    if run_folder is None and (missing := _missing(data, local)):
        named = [f"{_section_name(name)}.{key}" for name, key in missing]
        raise ConfigError(
            f"{', '.join(named)}: the run {run.run.name} trains on files of its founder's machine: "
            + ", ".join(repr(path) for paths in missing.values() for path in paths),
            "get copies of these, and add the lines to your peer file (--peer), with full paths if "
            "the copies are in another folder:\n" + _section(data, local, missing),
        )
    folder = run_folder or Path()  # without a run folder, all paths come from the peer file
    is_file = data.tokenizer != "bytes"
    tokenizer = (is_file and local.tokenizer) or tokenizer_place(data.tokenizer, folder)
    texts = {name: _place(text, _own(local, name), folder) for name, text in data.texts.items()}
    return TextSources(texts, tokenizer)


def names_a_copy(data: Data, local: LocalData) -> bool:
    """Return True if the peer file names the place of any of the run's texts."""
    own = [(text, _own(local, name)) for name, text in data.texts.items()]
    return any((text.paths and at.paths) or (text.path and at.path) for text, at in own)


def _own(local: LocalData, name: str) -> LocalSource:
    return local.sources.get(name, LocalSource()) if name else local


def _place(text: TextSource, local: LocalSource, folder: Path) -> LocalSource:
    paths, table = text.paths, text.path
    if paths:
        paths = local.paths or tuple(text_place(path, folder) for path in paths)
    # Even a name on the hub is the volunteer's choice: its owner there decides what it contains.
    if table is not None:
        table = local.path or hub_place(table, folder)
    return LocalSource.model_construct(paths=paths, path=table)


def _missing(data: Data, local: LocalData) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return (text, key) → the founder's paths, for all that the peer file does not name."""
    tokenizer = () if data.tokenizer == "bytes" or local.tokenizer else (data.tokenizer,)
    missing: dict[tuple[str, str], tuple[str, ...]] = {}
    for name, text in data.texts.items():
        copy = _own(local, name)
        missing[name, "paths"] = () if copy.paths else text.paths
        missing[name, "path"] = () if copy.path or text.path is None else (text.path,)
    missing["", "tokenizer"] = tokenizer
    return {place: paths for place, paths in missing.items() if paths}


def _section_name(name: str) -> str:
    return f"data.sources.{name}" if name else "data"


def _section(data: Data, local: LocalData, missing: dict[tuple[str, str], tuple[str, ...]]) -> str:
    """Return a complete [data] section for the peer file, as TOML text.

    It repeats the present keys, because a file with two [data] sections is not valid TOML. Of the
    founder's paths it shows only the last part; a table's name on the hub stays whole.
    """
    own = local.model_dump(mode="json", by_alias=True, exclude_none=True)
    values_of: dict[str, dict[str, Any]] = {**own.pop("sources"), "": own}
    for (name, key), paths in missing.items():
        on_hub = key == "path" and data.texts[name].revision is not None
        copies = [path if on_hub else Path(path).name or path for path in paths]
        values_of.setdefault(name, {})[key] = copies if key == "paths" else copies[0]
    lines = list[str]()
    for name, values in sorted(values_of.items()):
        lines += [f"[{_section_name(name)}]"] if values else []
        lines += [f"{key} = {json.dumps(each, ensure_ascii=False)}" for key, each in values.items()]
    return "\n".join(lines)
