"""What is wrong with a configuration file: where, pydantic's words for what, and what to do."""

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import ValidationError

from atom.base.errors import ConfigError
from atom.config.section import Section

MAX_SHOWN = 5
MAX_SENTENCE = 400
"""Characters of what is said about one key."""
Keys = Mapping[str, Mapping[str, str]]
"""Section → key → what it means."""


def keys_of(model: type[Section]) -> Keys:
    """Everything that such a file may say, as it is written there."""
    return {
        name: {
            inner.alias or key: " ".join((inner.description or "").split())
            for key, inner in _section_of(field.annotation).model_fields.items()
        }
        for name, field in model.model_fields.items()
    }


def config_error(
    error: ValidationError, keys: Keys, elsewhere: Mapping[str, str], name: str
) -> ConfigError:
    """The first `MAX_SHOWN` problems of the file that is called `name`, a line each; the hint is of
    the first one. `elsewhere`: sections of the other kind of file → where they belong."""
    details = sorted(error.errors(include_url=False), key=_rank)[:MAX_SHOWN]
    problems = [_problem(detail, keys, elsewhere) for detail in details]
    lines = [f"{name}: {place}: {what}" if place else f"{name}: {what}"
             for place, what, _ in problems]  # fmt: skip
    return ConfigError("\n".join(lines), problems[0][2])


def _section_of(annotation: Any) -> type[Section]:
    kinds = (annotation, *get_args(annotation))
    return next(each for each in kinds if isinstance(each, type) and issubclass(each, Section))


def _rank(detail: Mapping[str, Any]) -> tuple[bool, bool]:
    """Unknown names first: a misspelt section is also a missing one. Of those, sections: they tell
    that it is the other kind of file."""
    return detail["type"] != "extra_forbidden", len(detail["loc"]) > 1


def _problem(
    detail: Mapping[str, Any], keys: Keys, elsewhere: Mapping[str, str]
) -> tuple[str, str, str]:
    """Where ("optimizer.decay"), what, and what to do about it."""
    location, context = tuple(detail["loc"]), detail.get("ctx", {})
    if "key" in context:
        location += tuple(context["key"].split("."))
    section, key = (*map(str, location[:2]), "", "")[:2]
    meaning = keys.get(section, {}).get(key)
    hint = context.get("hint") or (f"{key}: {meaning}" if meaning else "")
    if len(location) < 2 and section in keys:
        hint = hint or f"start a line with [{section}] and write its keys below"
    what = _without_middle(_words_of(detail, context))
    if detail["type"] == "extra_forbidden":
        what, hint = _unknown(section, key, keys, elsewhere)
    return _dotted(location), what, hint


def _words_of(detail: Mapping[str, Any], context: Mapping[str, Any]) -> str:
    """What one of pydantic's errors says of a value, with that value."""
    value, words = _shown(detail["input"]), str(detail["msg"])
    match detail["type"]:
        case "refused":
            return str(context["what"])
        case "value_error":
            return str(context["error"])
        case "string_pattern_mismatch":
            return f"cannot be {value}"
        case "missing":
            return "is missing"
        case "model_type":
            return "should be a section"
    _, should, rest = words.replace(" after validation", "").partition(" should ")
    if not should:
        return words
    return f"should {rest}" + ("" if ", not " in rest else f", not {value}")


def _unknown(section: str, key: str, keys: Keys, elsewhere: Mapping[str, str]) -> tuple[str, str]:
    """What is said of a name that a file cannot have, and the hint."""
    if not key:
        what, name, known = "unknown section", section, list(keys)
    else:
        what, name, known = "unknown key", key, list(keys[section])
    if not key and name in elsewhere:
        return what, elsewhere[name]
    if close := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return what, f"did you mean {close[0]}?"
    home = next((home for home in keys if name in keys[home]), None)
    return what, f"{name} belongs under [{home}]" if home else f"known here: {', '.join(known)}"


def _dotted(location: Iterable[int | str]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{_printable(str(part))}"
    return text.lstrip(".")


def _shown(value: Any) -> str:
    """As it stands in the file, or nearly."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # nan, inf: as TOML has them
    return _printable(json.dumps(value, ensure_ascii=False, default=str))


def _without_middle(text: str) -> str:
    """A long value stands in the middle of what is said about it."""
    half = MAX_SENTENCE // 2
    return text if len(text) <= MAX_SENTENCE else f"{text[:half]}…{text[-half:]}"


def _printable(text: str) -> str:
    """A stranger's text may hold control characters for the terminal, and be very long."""
    safe = "".join(c if c.isprintable() else "�" for c in text)
    return safe if len(safe) <= 80 else safe[:77] + "…"
