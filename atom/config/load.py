"""From a file's bytes, or a stranger's text, to a validated configuration; or to what is wrong with
it: where, pydantic's words for what, and what to do."""

import difflib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from atom.base.errors import ConfigError
from atom.base.printable import printable
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.config.section import Section

MAX_FILE_BYTES = 64 * 1024
"""Longer texts are refused unread: a run file travels through the DHT's peers."""
MAX_SHOWN = 5
MAX_SENTENCE = 300
"""Characters of what is said about one key."""

_OTHER_WORDS = {"missing": "is missing", "model_type": "should be a section"}

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
    """A peer file's TOML text. Its paths, relative to `folder`, become absolute: it may be read
    while the daemon stands elsewhere. Raises: ConfigError."""
    return _validated(PeerFile, _parse_toml(text, name), name, folder)


def check_listen(peer: PeerFile, listen: str) -> None:
    """Raises: ConfigError if with `--listen` two ports have one number."""
    tree = peer.model_dump(mode="json", by_alias=True, exclude_none=True)
    _validated(PeerFile, {**tree, "network": tree["network"] | {"listen": listen}}, "--listen")


def check_checkpoints(peer: PeerFile, run: RunFile) -> None:
    """Raises: ConfigError if the best is to be kept, and nothing says which that is."""
    if peer.checkpoints.best and run.validation is None:
        raise ConfigError(
            f"checkpoints.best: {run.run.name} is never validated",
            "leave it out of the peer file, or found a run with [validation]",
        )


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


def keys_of(model: type[Section]) -> dict[str, dict[str, str]]:
    """Section → key → what it means: everything that such a file may say, as it is written. A
    section with names of a user's below it is called "section.key.NAME"."""
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
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        problem = str(getattr(error, "strerror", None) or error).lower()
        raise ConfigError(f"{path}: {problem}", "check its path and rights") from None
    _check_length(len(content), str(path))  # before what may be cut within a character is decoded
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
    _check_length(len(text.encode("utf-8", "surrogatepass")), name)
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))  # with which some editors begin
    except (ValueError, RecursionError) as error:
        hint = "texts need quotes, sections brackets: https://toml.io"
        raise ConfigError(f"{name}: not valid TOML: {error}", hint) from None


def _validated(
    model: type[_SectionT], tree: Any, name: str, folder: Path | None = None
) -> _SectionT:
    """Raises: ConfigError with the first `MAX_SHOWN` problems, a line each, and the hint of the
    first one."""
    # As JSON, because strict validation then takes lists for tuples and tables for sections. A date
    # without quotes is a text in it.
    try:
        return model.model_validate_json(json.dumps(tree, default=str), context=folder)
    except ValidationError as error:
        details = sorted(error.errors(include_url=False), key=_rank)[:MAX_SHOWN]
    problems = [_problem(detail, model) for detail in details]
    raise ConfigError("\n".join(f"{name}: {_safe(what)}" for what, _ in problems), problems[0][1])


def _rank(detail: Mapping[str, Any]) -> tuple[bool, bool]:
    """Unknown names first: a misspelt section is also a missing one. Of those, sections: they tell
    that it is the other kind of file."""
    return detail["type"] != "extra_forbidden", len(detail["loc"]) > 1


def _problem(detail: Mapping[str, Any], model: type[Section]) -> tuple[str, str]:
    """Where and what ("optimizer.decay: should be …"), and what to do about it."""
    context, keys = detail.get("ctx", {}), keys_of(model)
    location = [part for part in detail["loc"] if part != "[key]"]  # pydantic's, for a name
    location += context["key"].split(".") if "key" in context else []
    section, key, _, within = (*map(str, location), "", "", "", "")[:4]
    if within and (named := f"{section}.{key}.NAME") in keys:
        section, key = named, within
    what, hint = _words_of(detail), context.get("hint", "")
    if detail["type"] == "extra_forbidden":
        what, hint = _unknown(section, key, model)
    elif not hint and key:
        hint = f"{key}: {keys[section].get(key, '')}"
    elif not hint and section in keys:
        hint = f"start a line with [{section}] and write its keys below"
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    place = "".join(parts).lstrip(".")
    return f"{place}: {what}" if place else what, hint


def _words_of(detail: Mapping[str, Any]) -> str:
    """What one of pydantic's errors says of a value, with that value."""
    kind, words = detail["type"], re.sub("^(Value error,|Input) ", "", detail["msg"])
    if kind == "string_pattern_mismatch":
        return f"cannot be {_shown(detail['input'])}"
    if kind in ("refused", "value_error") or ", not " in words:
        return words
    return _OTHER_WORDS.get(kind) or f"{words}, not {_shown(detail['input'])}"


def _unknown(section: str, key: str, model: type[Section]) -> tuple[str, str]:
    """What is said of a name that a file cannot have, and the hint."""
    keys = keys_of(model)
    name, known = (key, keys[section]) if key else (section, keys)
    what = f"unknown {'key' if key else 'section'}"
    if not key and name in RunFile.model_fields:
        return what, f"[{name}] is agreed on by the whole swarm: it belongs into the run file"
    if not key and name in PeerFile.model_fields:
        return what, f"[{name}] is of one box: put it into a peer file, and pass that with --peer"
    if close := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return what, f"did you mean {close[0]}?"
    home = next((home for home in keys if name in keys[home]), None)
    return what, f"{name} belongs under [{home}]" if home else f"known here: {', '.join(known)}"


def _shown(value: Any) -> str:
    """As it stands in the file, or nearly."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # nan, inf: as TOML has them
    return json.dumps(value, ensure_ascii=False, default=str)


def _safe(text: str) -> str:
    """A stranger's text may hold control characters for the terminal, and be very long: then its
    middle is left out, in which the long value stands."""
    safe, half = printable(text), MAX_SENTENCE // 2
    return safe if len(safe) <= MAX_SENTENCE else f"{safe[:half]}…{safe[-half:]}"
