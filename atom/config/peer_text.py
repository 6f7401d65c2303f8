"""A peer file's text, changed key by key: comments, order, spaces, the ends of lines and the mark
that some editors begin a file with stay. Pure."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import tomlkit
from pydantic import BaseModel
from tomlkit.exceptions import TOMLKitError

from atom.base.errors import ConfigError
from atom.base.units import format_bits_per_s, format_seconds
from atom.config.load import MARK
from atom.config.peer_file import PeerFile

_MEND = "mend the peer file first"
_BARE_END = re.compile(r"(?<!\r)\n")
_QUANTITY = re.compile(r"([0-9.]+) (bit/s|s)")
Assignment = tuple[str, Any]
"""("network.upload", "20 Mbit/s"); None: the key goes, its default holds."""


def all_keys() -> tuple[str, ...]:
    """ "section.key" of everything a peer file may say."""
    return tuple(key for key, _ in _flat(PeerFile()))


def check_key(text: str) -> None:
    """Raises: ConfigError for what is no "section.key" of a peer file."""
    keys = all_keys()
    if text in keys:
        return
    namesakes = [key for key in keys if key.endswith(f".{text}")]
    close = namesakes or difflib.get_close_matches(text, keys, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise ConfigError(f"unknown key {text!r}", f"{meant}`atom set` alone shows all keys")


def parse_assignment(text: str) -> Assignment:
    """ "KEY=VALUE", VALUE as in a peer file, where texts need no quotes; "KEY=": the default.

    Raises: ConfigError for what is no assignment at all; whether the key may have that value, the
    peer file says.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or key.count(".") != 1 or not all(key.split(".")):
        raise ConfigError(
            f"{text!r} is not KEY=VALUE",
            'such as network.upload="20 Mbit/s"; `atom set` alone shows all keys',
        )
    return key, _value_of(value)


def edited(text: str, assignments: Sequence[Assignment], file: str = "peer file") -> str:
    """`text` with these keys changed. Raises: ConfigError, which begins with `file`, for a text
    that is no TOML, or has something else where a section is to be."""
    document = _document(text, file)
    for key, value in assignments:
        section, name = key.split(".")
        if section not in document and value is not None:
            document[section] = tomlkit.table()
        table = _table(document, section, file)
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value
    mark = MARK if text.startswith(MARK) else ""
    return mark + _ended_alike(tomlkit.dumps(document), text)


def _ended_alike(text: str, before: str) -> str:
    """New lines end as all of those that were there, if all end alike."""
    if "\r\n" in before and not _BARE_END.search(before):
        return _BARE_END.sub("\r\n", text)
    return text


def written(text: str, key: str, file: str = "peer file") -> str:
    """What stands behind a key, as TOML; empty: it is not there. Raises: as `edited`."""
    section, name = key.split(".")
    value = _table(_document(text, file), section, file).get(name)
    return "" if value is None else str(tomlkit.item(value).as_string()).replace("\r\n", "\n")


def _document(text: str, name: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text.removeprefix(MARK))
    except TOMLKitError as problem:
        raise ConfigError(f"{name}: not valid TOML: {problem}", _MEND) from None


def _table(document: tomlkit.TOMLDocument, section: str, name: str) -> MutableMapping[str, Any]:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{name}: {section}: expected a section", _MEND)
    return table


def default_text(key: str) -> str:
    """What holds without the key, as TOML; empty: nothing, or what is found best."""
    value = dict(_flat(PeerFile()))[key]
    return "" if value is None else json.dumps(_readable(value))


def _readable(value: Any) -> Any:
    """ "10 min" for "600.000000 s": a file's values are exact instead."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    write = format_seconds if match[2] == "s" else format_bits_per_s
    return write(float(match[1]))


def changed_keys(before: PeerFile, after: PeerFile) -> frozenset[str]:
    """Whose values differ."""
    old = dict(_flat(before))
    return frozenset(key for key, value in _flat(after) if value != old[key])


def _flat(peer: PeerFile) -> Iterator[tuple[str, Any]]:
    for section in PeerFile.model_fields:
        values: BaseModel = getattr(peer, section)
        for name, value in values.model_dump(mode="json", by_alias=True).items():
            yield f"{section}.{name}", value


def _value_of(text: str) -> Any:
    if not text:
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
