"""Settings in the folder of a tokenizer.json: special tokens, chat templates, ends of answers.

They travel with the tokenizer.json as one content (`pack`), which the run pins by its digest. A
joiner receives this content from strangers, so names, types and sizes are checked before use. Chat
templates are only kept as text here.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atom.base.errors import ConfigError

CONFIG, GENERATION = "tokenizer_config.json", "generation_config.json"
_MAP = "special_tokens_map.json"
_USUAL = "chat_template"
_TEMPLATES = re.compile(rf"({_USUAL}|additional_chat_templates/[\w-]{{1,64}})\.jinja", re.ASCII)
MOST_BYTES = 1 << 22
"""Maximum size of all settings, which real models stay far below."""
_BORDER = b"\0"
"""Byte between the tokenizer.json and its settings: no JSON text contains it."""
_DROPPED = re.compile(r"auto_map|name_or_path|.*_files?")
"""Keys that name code or files on one machine, which must not reach another one."""
_SPECIAL = tuple(f"{n}_token" for n in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""Keys of special tokens, in the order in which `transformers` adds missing ones."""

Settings = Mapping[str, Any]
"""Name of a file → its content: a JSON object as a dict, a template as text."""


def read_settings(folder: Path) -> Settings:
    """Return the settings that a tokenizer's folder declares; empty if it has none.

    Raises:
        ConfigError: a file cannot be read, or is malformed or too large.
    """

    def read() -> dict[str, Any]:
        found = dict[str, Any]()
        for path in sorted([*folder.glob("*"), *folder.glob("additional_chat_templates/*")]):
            if kind := _kind_of(name := path.relative_to(folder).as_posix()):
                text = path.read_text("utf-8")
                try:
                    found[name] = text if kind is str else json.loads(text)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from error
        return found

    return _checked(read, str(folder))


def pack(tokenizer_json: bytes, settings: Settings) -> bytes:
    """Return a tokenizer.json and its settings as one content; without settings, the file alone."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return tokenizer_json + _BORDER + text.encode() if settings else tokenizer_json


def unpack(content: bytes, where: str) -> tuple[bytes, Settings | None]:
    """Return (tokenizer.json, settings) of a content, which may come from a stranger.

    Args:
        content: content that `pack` has made, or a plain tokenizer.json.
        where: name of the content in errors.

    Returns:
        The settings are None if the content has none.

    Raises:
        ConfigError: the settings are malformed or too large.
    """
    tokenizer_json, border, text = content.partition(_BORDER)
    is_small = len(text) <= MOST_BYTES
    return tokenizer_json, _checked(
        lambda: is_small and json.loads(text), where
    ) if border else None


def declared(settings: Settings, key: str) -> Any:
    """Return a value of tokenizer_config.json, else of special_tokens_map.json; None: neither."""
    found = settings.get(CONFIG, {}).get(key)
    return settings.get(_MAP, {}).get(key) if found is None else found


def declared_tokens(settings: Settings) -> list[Any]:
    """Return all declared tokens, as texts or objects, in the order of `transformers`."""
    numbered = declared(settings, "added_tokens_decoder") or {}
    tokens = [numbered[number] for number in sorted(numbered, key=int)]
    tokens += [declared(settings, key) for key in _SPECIAL]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = declared(settings, key) or []
        tokens += more.values() if isinstance(more, dict) else more
    return tokens


def token_text(value: Any) -> str | None:
    """Return the text of a special token, which is declared as a text or as an object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def templates(settings: Settings) -> dict[str, str]:
    """Return the chat templates by name; the usual one is "default"."""
    files = {Path(name).stem: text for name, text in settings.items() if isinstance(text, str)}
    if _USUAL in files:
        files["default"] = files.pop(_USUAL)
    # As in transformers, files replace all templates of the configuration.
    return files or _in_config(settings.get(CONFIG, {}).get("chat_template"))


def _in_config(found: Any) -> dict[str, str]:
    """Return the templates in tokenizer_config.json by name. Raises: ValueError: malformed."""
    if isinstance(found, list) and all(isinstance(each, dict) for each in found):
        pairs = [(each.get("name"), each.get("template")) for each in found]
    else:
        pairs = [] if found is None else [("default", found)]
    for pair in pairs:
        if not all(isinstance(each, str) for each in pair):
            raise ValueError("a chat template is not a text with a name")
    return dict(pairs)


def special_tokens(settings: Settings) -> dict[str, str]:
    """Return the declared special tokens, by keys such as "bos_token"."""
    found = {key: token_text(declared(settings, key)) for key in _SPECIAL}
    return {key: text for key, text in found.items() if text is not None}


def answer_ends(settings: Settings) -> list[int]:
    """Return the tokens by which generation_config.json ends an answer."""
    ends = settings.get(GENERATION, {}).get("eos_token_id")
    return [e for e in (ends if isinstance(ends, list) else [ends]) if type(e) is int and e >= 0]


def _kind_of(name: str) -> type | None:
    """Return the type of a file's content; None if the file holds no settings."""
    if name in (CONFIG, GENERATION, _MAP):
        return dict
    return str if _TEMPLATES.fullmatch(name) else None


def _checked(read: Callable[[], Any], where: str) -> Settings:
    """Return the settings that a function reads, without keys of one machine.

    Raises:
        ConfigError: they are malformed or too large.
    """
    try:
        found = read()
        if not isinstance(found, dict) or len(found) > 32 or len(pack(b"", found)) > MOST_BYTES:
            raise ValueError(f"more than 32 files or {MOST_BYTES:,} bytes, or no JSON object")
        for name, content in found.items():
            if type(content) is not _kind_of(name):
                raise ValueError(f"{name!r} is unknown, or its content has the wrong type")
        for template in templates(found).values():
            template.encode()
    except (OSError, ValueError, RecursionError) as error:
        hint = "correct the file, or move the tokenizer.json into a folder of its own"
        raise ConfigError(f"{where}: the tokenizer's settings: {error}", hint) from error
    config = found.get(CONFIG, {})
    kept = {key: value for key, value in config.items() if not _DROPPED.fullmatch(key)}
    return found | {CONFIG: kept} if config else found
