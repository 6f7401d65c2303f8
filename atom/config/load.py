"""Loading of run and peer files: bytes or untrusted text in, a validated configuration out.

A refused file raises ConfigError, which names the key, the problem in pydantic's words, and what to
do about it.
"""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from atom.base.errors import ConfigError
from atom.base.files import read_bounded
from atom.base.units import printable
from atom.config.model_and_data import Data, Model
from atom.config.peer_file import PeerFile
from atom.config.run_file import PinnedRun, RunFile
from atom.config.section import Section

MAX_FILE_BYTES = 64 * 1024
"""Maximum size of a configuration text; longer ones are refused before they are parsed.

A run file travels through the DHT, so its text may come from a hostile peer.
"""
MAX_SHOWN = 5
"""Maximum number of problems that one error lists."""
MAX_SENTENCE = 300
"""Maximum number of characters in the message about one key."""

Options = Mapping[str, Any]
"""Values of options of the command line, by the names of `OPTION_KEYS`."""
NO_OPTIONS: Options = MappingProxyType({})
OPTION_KEYS = {
    "--listen": "network.listen",
    "--upload": "network.upload",
    "--download": "network.download",
    "--gpu-memory": "device.memory",
    "--cpu-threads": "device.cpu_threads",
    "--hours": "schedule.hours",
    "--map-ports": "network.map_ports",
}
"""Option of the command line → key of the peer file that the option replaces."""

_MANIFEST = "the run's manifest"
"""Name of a founded run's text in error messages."""
_REPLACED_MESSAGES = {"missing": "is missing", "model_type": "should be a section"}
"""Pydantic's error type → our message, where pydantic's own would confuse a user."""

_SectionT = TypeVar("_SectionT", bound=Section)


def load_run_file(path: Path | str) -> RunFile:
    """Read a run file. Its paths stay as written; `atom.config.sources` resolves them.

    Raises:
        ConfigError: the message names the file, the key and what to do.
    """
    return parse_run_text(_read(Path(path)), str(path))


def parse_run_text(text: str, name: str = "run file") -> RunFile:
    """Parse the TOML text of a run file; errors refer to the file as `name`.

    Raises:
        ConfigError: the text is not a valid run file.
    """
    return _validated(RunFile, _parse_toml(text, name), name)


def load_peer_file(path: Path | str | None, options: Options = NO_OPTIONS) -> PeerFile:
    """Read a peer file and make its paths absolute.

    Args:
        path: path of the file; None: all keys have their defaults.
        options: values of the command line that replace keys, by names of `OPTION_KEYS`.

    Raises:
        ConfigError: the message names the file or the option, the key and what to do.
    """
    peer = PeerFile()
    if path is not None:
        peer = parse_peer_text(_read(Path(path)), Path(path).parent, str(path))
    for option, value in options.items():
        section, key = OPTION_KEYS[option].split(".")
        tree = peer.model_dump(mode="json", by_alias=True, exclude_none=True)
        tree[section][key] = value
        peer = _validated(PeerFile, tree, option)
    return peer


def parse_peer_text(text: str, folder: Path, name: str = "peer file") -> PeerFile:
    """Parse the TOML text of a peer file; errors refer to the file as `name`.

    Paths in it, relative to `folder`, become absolute, because the daemon's working directory may
    be another one.

    Raises:
        ConfigError: the text is not a valid peer file.
    """
    return _validated(PeerFile, _parse_toml(text, name), name, folder)


def check_checkpoints(peer: PeerFile, run: RunFile) -> None:
    """Refuse a peer file that keeps the best checkpoint in a run without validation.

    Raises:
        ConfigError: the peer file has the key, and the run is never validated.
    """
    if peer.checkpoints.best and run.validation is None:
        raise ConfigError(
            f"checkpoints.best: the run {run.run.name} is never validated",
            "remove the key from the peer file, or found a run with [validation]",
        )


def normalised_run_text(run: RunFile) -> str:
    """Return the canonical JSON of a run file, which travels in the manifest.

    Equal runs give equal text.
    """
    content = run.model_dump(mode="json", exclude_none=True)
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def run_from_text(text: str) -> RunFile:
    """Parse the text that `normalised_run_text` wrote, possibly on an untrusted machine.

    Raises:
        ConfigError: the text is too long, not JSON, or not a valid run file.
    """
    return _validated(RunFile, _parse_json(text), _MANIFEST)


def pinned_run(text: str) -> PinnedRun:
    """Parse the text of a founded run, possibly from an untrusted machine.

    Raises:
        ConfigError: as `run_from_text`, and if a key is missing that founding a run fills in.
    """
    return _validated(PinnedRun, _parse_json(text), _MANIFEST)


def fill_in(run: RunFile, model: Model, data: Data) -> PinnedRun:
    """Return the run with these sections, exactly as a joiner reads it from the manifest.

    Raises:
        ConfigError: as `pinned_run`.
    """
    return pinned_run(normalised_run_text(run.model_copy(update={"model": model, "data": data})))


def keys_of(model: type[Section]) -> dict[str, dict[str, str]]:
    """Return section → key → meaning for every key that a file of this kind may have.

    Sections and keys are spelt as in the file. A section whose name the user chooses, such as
    [data.sources.books], appears as "data.sources.NAME".
    """
    found: dict[str, dict[str, str]] = {}
    for name, field in model.model_fields.items():
        found |= _sections_in(name, field.annotation)
    return found


def _sections_in(name: str, annotation: Any) -> dict[str, dict[str, str]]:
    kinds = (annotation, *get_args(annotation))
    section = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
    found: dict[str, dict[str, str]] = {} if section is None else {name: {}}
    for key, field in section.model_fields.items() if section is not None else ():
        found[name][field.alias or key] = " ".join((field.description or "").split())
        found |= _sections_in(f"{name}.{key}.NAME", field.annotation)
    return found


def _read(path: Path) -> str:
    too_long = "no run or peer file is that long: name another file"
    content = read_bounded(path, MAX_FILE_BYTES, too_long)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"{path}: not UTF-8 text (byte {error.start})"
        raise ConfigError(what, "save the file as UTF-8, or name another file") from None


def _parse_toml(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))  # some editors write a byte-order mark
    except (ValueError, RecursionError) as error:
        hint = "strings need quotes, section names need brackets: https://toml.io"
        raise ConfigError(f"{name}: not valid TOML: {error}", hint) from None


def _parse_json(text: str) -> Any:
    hint = "the run's founder may use a different version of Atom"
    if len(text.encode("utf-8", "surrogatepass")) > MAX_FILE_BYTES:
        what = f"{_MANIFEST}: longer than {MAX_FILE_BYTES // 1024} KiB"
        raise ConfigError(what, hint)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{_MANIFEST}: not JSON: {error}", hint) from None


def _validated(
    model: type[_SectionT], tree: Any, name: str, folder: Path | None = None
) -> _SectionT:
    """Validate a parsed tree as `model`; `folder` is the base of its relative paths.

    Raises: ConfigError with the first `MAX_SHOWN` problems, one per line, and the first one's hint.
    """
    # The tree is passed as JSON because strict validation of JSON accepts lists for tuples and
    # objects for sections. TOML's dates and times become strings on the way.
    try:
        return model.model_validate_json(json.dumps(tree, default=str), context=folder)
    except ValidationError as error:
        details = sorted(error.errors(include_url=False), key=_rank)[:MAX_SHOWN]
    problems = [_problem(detail, model) for detail in details]
    raise ConfigError("\n".join(f"{name}: {_short(what)}" for what, _ in problems), problems[0][1])


def _rank(detail: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return the sort key of a problem: unknown sections, then unknown keys, then all others.

    A misspelt section also counts as missing, and its spelling is the useful message. An unknown
    section may show that a peer file was given for a run file, or the reverse.
    """
    return detail["type"] != "extra_forbidden", len(detail["loc"]) > 1


def _problem(detail: Mapping[str, Any], model: type[Section]) -> tuple[str, str]:
    """Return a problem as (message, hint); the message begins with the key: "run.rounds: …"."""
    context, keys = detail.get("ctx", {}), keys_of(model)
    # Pydantic adds "[key]" to the location if the name of a table entry itself is invalid.
    location = [part for part in detail["loc"] if part != "[key]"]
    location += context["key"].split(".") if "key" in context else []
    section, key, _, within = (*map(str, location), "", "", "", "")[:4]
    if within and (named := f"{section}.{key}.NAME") in keys:
        section, key = named, within
    what, hint = _message_about_value(detail), context.get("hint", "")
    if detail["type"] == "extra_forbidden":
        what, hint = _unknown(section, key, model)
    elif not hint and key:
        hint = f"{key}: {keys[section].get(key, '')}"
    elif not hint and section in keys:
        hint = f"start a line with [{section}] and write its keys below"
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    place = "".join(parts).lstrip(".")
    return f"{place}: {what}" if place else what, hint


def _message_about_value(detail: Mapping[str, Any]) -> str:
    """Return pydantic's message about a value, with the value shown where that helps."""
    kind, words = detail["type"], re.sub("^(Value error,|Input) ", "", detail["msg"])
    if kind == "string_pattern_mismatch":
        return f"cannot be {_shown(detail['input'])}"
    if kind in ("refused", "value_error") or ", not " in words:
        return words
    return _REPLACED_MESSAGES.get(kind) or f"{words}, not {_shown(detail['input'])}"


def _unknown(section: str, key: str, model: type[Section]) -> tuple[str, str]:
    """Return the message and the hint for a section or key that this kind of file does not have."""
    keys = keys_of(model)
    name, known = (key, keys[section]) if key else (section, keys)
    what = f"unknown {'key' if key else 'section'}"
    if not key and name in RunFile.model_fields:
        return what, f"[{name}] is the same for the whole swarm: put it into the run file"
    if not key and name in PeerFile.model_fields:
        return what, f"[{name}] is for one machine: put it into a peer file, passed with --peer"
    if close := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return what, f"did you mean {close[0]}?"
    home = next((home for home in keys if name in keys[home]), None)
    return what, f"{name} belongs under [{home}]" if home else f"known here: {', '.join(known)}"


def _shown(value: Any) -> str:
    """Return the value as written in the file, or nearly so."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # TOML also writes nan and inf
    return json.dumps(value, ensure_ascii=False, default=str)


def _short(text: str) -> str:
    """Return an untrusted message without control characters, cut to MAX_SENTENCE characters.

    A long message loses its middle, because that is where the long value is quoted.
    """
    safe, half = printable(text), MAX_SENTENCE // 2
    return safe if len(safe) <= MAX_SENTENCE else f"{safe[:half]}…{safe[-half:]}"
