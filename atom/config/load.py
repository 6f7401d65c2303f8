"""From a file's bytes, or a stranger's text, to a validated configuration."""

import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from atom.base.errors import ConfigError
from atom.base.home import expand_home
from atom.config.peer_file import PeerFile
from atom.config.places import table_place, text_place
from atom.config.problems import config_error, keys_of
from atom.config.run_file import RunFile
from atom.config.section import Section

MAX_FILE_BYTES = 64 * 1024
"""Longer texts are refused unread: a run file travels through the DHT's peers."""

MARK = "\ufeff"
"""What some editors begin a file in UTF-8 with."""

_SectionT = TypeVar("_SectionT", bound=Section)


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
        raise ConfigError(f"{path}: no such file", "check the path") from None
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read: {what}", "check its path and rights") from None
    _check_length(len(content), str(path))
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"{path}: not UTF-8 text (byte {error.start})"
        raise ConfigError(what, "save it as UTF-8, or name another file") from None


def _check_length(length_bytes: int, name: str) -> None:
    if length_bytes > MAX_FILE_BYTES:
        what = f"{name}: longer than {MAX_FILE_BYTES // 1024} KiB"
        raise ConfigError(what, "this is not a run or peer file")


def _parse_toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix(MARK))
    except (ValueError, RecursionError) as error:
        hint = "texts need quotes, sections brackets: https://toml.io"
        raise ConfigError(f"{name}: not valid TOML: {error}", hint) from None


def _validated(model: type[_SectionT], tree: Any, name: str) -> _SectionT:
    # As JSON, because strict validation then takes lists for tuples and tables for sections. A date
    # without quotes is a text in it.
    try:
        return model.model_validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        raise config_error(error, keys_of(model), _elsewhere(model), name) from None


def _elsewhere(model: type[Section]) -> dict[str, str]:
    """Sections of the other kind of file → where they belong."""
    other: type[Section] = RunFile
    hint = "is agreed on by the whole swarm: it belongs into the run file"
    if model is RunFile:
        other = PeerFile
        hint = "describes one box: put it into a peer file, and pass that with --peer"
    names = other.model_fields.keys() - model.model_fields.keys()
    return {name: f"[{name}] {hint}" for name in names}


def _anchored(peer: PeerFile, folder: Path) -> PeerFile:
    """The peer file with absolute paths: it may be read while the daemon stands elsewhere."""

    def absolute(text: str | None) -> str | None:
        return text and str((folder / expand_home(text)).absolute())

    data = peer.data
    local = {
        "paths": data.paths and tuple(text_place(path, folder) for path in data.paths),
        "path": data.path and table_place(data.path, folder),
        "tokenizer": data.tokenizer if data.tokenizer == "bytes" else absolute(data.tokenizer),
    }
    directory, tensorboard = absolute(peer.state.directory), absolute(peer.log.tensorboard)
    return peer.model_copy(
        update={
            "data": data.model_copy(update=local),
            "state": peer.state.model_copy(update={"directory": directory}),
            "log": peer.log.model_copy(update={"tensorboard": tensorboard}),
        }
    )
