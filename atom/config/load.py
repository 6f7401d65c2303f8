"""From a file's bytes, or a stranger's text, to a validated configuration."""

import json
import tomllib
from collections.abc import Mapping
from datetime import date, time
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from atom.base.errors import ConfigError
from atom.base.home import expand_home
from atom.config.peer_file import PeerFile
from atom.config.problems import problems_of
from atom.config.run_file import RunFile
from atom.config.section import Section
from atom.config.text_place import table_place, text_place

MAX_FILE_BYTES = 64 * 1024
"""Longer texts are refused unread: a run file travels through the DHT's peers."""

MARK = "\ufeff"
"""What some editors begin a file in UTF-8 with."""

_SectionT = TypeVar("_SectionT", bound=Section)

_PEER_SECTIONS = {
    name: f"[{name}] describes one box: put it into a peer file, and pass that with --peer"
    for name in PeerFile.model_fields
    if name not in RunFile.model_fields
}
_RUN_SECTIONS = {
    name: f"[{name}] is agreed on by the whole swarm: it belongs into the run file"
    for name in RunFile.model_fields
    if name not in PeerFile.model_fields
}


def load_run_file(path: Path | str) -> RunFile:
    """Reads a run file. Paths in it stay as written: see `atom.config.sources`.

    Raises: ConfigError naming the file, the key and what to do.
    """
    return parse_run_text(_read(Path(path)), str(path))


def parse_run_text(text: str, name: str = "run file") -> RunFile:
    """A run file's TOML text; `name` is what errors call it. Raises: ConfigError."""
    return _validated(RunFile, _parse_toml(text, name), name)


def load_peer_file(path: Path | str | None) -> PeerFile:
    """Reads a peer file and makes its paths absolute; None: all defaults.

    Raises: ConfigError naming the file, the key and what to do.
    """
    if path is None:
        return PeerFile()
    return parse_peer_text(_read(Path(path)), Path(path).parent, str(path))


def parse_peer_text(text: str, folder: Path, name: str = "peer file") -> PeerFile:
    """A peer file's TOML text; its paths are taken relative to `folder`. Raises: ConfigError."""
    _check_length(len(text.encode("utf-8", "surrogatepass")), name)
    return _anchored(_validated(PeerFile, _parse_toml(text, name), name), folder)


def normalised_run_text(run: RunFile) -> str:
    """The canonical JSON of a run file: equal runs give equal text. Travels in the manifest."""
    content = run.model_dump(mode="json", exclude_none=True, exclude=run.unused_keys())
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def run_from_text(text: str, name: str = "the run's manifest") -> RunFile:
    """Reads what `normalised_run_text` wrote, maybe on a stranger's machine.

    Raises: ConfigError for a text that is too long, not JSON, or no valid run file.
    """
    _check_length(len(text.encode("utf-8", "surrogatepass")), name)
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "the founder may run another version of Atom"
        raise ConfigError(f"{name}: not JSON: {error}", hint) from None
    return _validated(RunFile, tree, name)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", _file_hint(path)) from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder, not a file", _file_hint(path)) from None
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {what}", "check its path and rights") from None
    _check_length(len(content), str(path))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"{path}: not UTF-8 text (byte {error.start})"
        raise ConfigError(what, "save it as UTF-8, or name another file") from None


def _file_hint(path: Path) -> str:
    folder = path if path.is_dir() else path.parent
    found = sorted(file.name for file in folder.glob("*.toml"))[:8] if folder.is_dir() else []
    return f"in {folder} there are: {', '.join(found)}" if found else "check the path"


def _check_length(length_bytes: int, name: str) -> None:
    if length_bytes > MAX_FILE_BYTES:
        what = f"{name}: longer than {MAX_FILE_BYTES // 1024} KiB"
        raise ConfigError(what, "this is not a run or peer file")


def _parse_toml(text: str, name: str) -> dict[str, Any]:
    try:
        tree = tomllib.loads(text.removeprefix(MARK))
    except (ValueError, RecursionError) as error:
        hint = "texts need quotes, sections brackets: https://toml.io"
        raise ConfigError(f"{name}: not valid TOML: {error}", hint) from None
    _refuse_dates(tree, name)
    return tree


def _refuse_dates(tree: Any, name: str) -> None:
    """TOML has dates without quotes, JSON has none: no key takes one. Raises: ConfigError."""
    waiting = [("", tree)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, date | time):
            what = f"{name}: {place}: expected no date or time, not {value.isoformat()}"
            raise ConfigError(what, "if a text is meant, put it into quotes")
        if isinstance(value, list):
            waiting += [(f"{place}[{index}]", inner) for index, inner in enumerate(value)]
        if isinstance(value, dict):
            waiting += [(f"{place}.{key}".lstrip("."), inner) for key, inner in value.items()]


def _validated(model: type[_SectionT], tree: Any, name: str) -> _SectionT:
    # As JSON, because strict validation then takes lists for tuples and tables for sections.
    try:
        return model.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        problems = problems_of(error, model, _elsewhere(model))
    lines = [f"{name}: {problem}" for problem in problems]
    raise ConfigError("\n".join(lines), problems[0].hint)


def _elsewhere(model: type[Section]) -> Mapping[str, str]:
    return _PEER_SECTIONS if model is RunFile else _RUN_SECTIONS


def _anchored(peer: PeerFile, folder: Path) -> PeerFile:
    """The peer file with absolute paths: it may be read while the daemon stands elsewhere."""

    def absolute(text: str) -> str:
        return str((folder / expand_home(text)).absolute())

    data, state = peer.data, peer.state
    given = data.paths
    paths = None if given is None else tuple(text_place(path, folder) for path in given)
    tokenizer = data.tokenizer
    if tokenizer not in (None, "bytes"):
        tokenizer = absolute(tokenizer)
    directory = None if state.directory is None else absolute(state.directory)
    tensorboard = None if peer.log.tensorboard is None else absolute(peer.log.tensorboard)
    path = None if data.path is None else table_place(data.path, folder)
    local = {"paths": paths, "path": path, "tokenizer": tokenizer}
    return peer.model_copy(
        update={
            "data": data.model_copy(update=local),
            "state": state.model_copy(update={"directory": directory}),
            "log": peer.log.model_copy(update={"tensorboard": tensorboard}),
        }
    )
