"""What is wrong with a configuration file, in the words of someone who writes one."""

import difflib
import json
import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError

from atom.config.section import Section

MAX_SHOWN = 5
MAX_SENTENCE = 400
"""Characters of what is said about one key."""

WITHDRAWN = {
    "device.share": "remove it: runs on one device have turns of equal length, [device] slot",
}
"""What to do about a key that there was."""

_WORDS = {
    "int_type": "expected a whole number, not {value}",
    "int_from_float": "expected a whole number, not {value}",
    "int_parsing": "expected a whole number, not {value}",
    "float_type": "expected a number, not {value}",
    "finite_number": "expected a finite number, not {value}",
    "bool_type": "expected true or false, not {value}",
    "string_type": "expected a text in quotes, not {value}",
    "tuple_type": "expected a list in brackets, not {value}",
    "greater_than": "must be above {gt}, not {value}",
    "greater_than_equal": "must be at least {ge}, not {value}",
    "less_than": "must be below {lt}, not {value}",
    "less_than_equal": "must be at most {le}, not {value}",
    "string_too_short": "must not be empty",
    "string_too_long": "is longer than {max_length} characters",
    "too_long": "has more than {max_length} entries",
    "literal_error": "expected {expected}, not {value}",
    "string_pattern_mismatch": "cannot be {value}",
    "json_invalid": "holds characters that are no text",
    "value_error": "{error}",
    "refused": "{what}",
}


@dataclass(frozen=True)
class Problem:
    """One mistake: where ("optimizer.decay"), what, and what to do about it."""

    place: str
    what: str
    hint: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}" if self.place else self.what


def problems_of(
    error: ValidationError, model: type[Section], elsewhere: Mapping[str, str]
) -> list[Problem]:
    """The first `MAX_SHOWN` problems, at least one.

    `elsewhere`: sections of the other kind of file → where they belong.
    """
    details = sorted(error.errors(include_url=False), key=_rank)
    return [_problem(detail, model, elsewhere) for detail in details[:MAX_SHOWN]]


def _rank(detail: Mapping[str, Any]) -> tuple[bool, bool]:
    """Unknown names first: a misspelt section is also a missing one. Of those, sections: they tell
    that it is the other kind of file."""
    return detail["type"] != "extra_forbidden", len(detail["loc"]) > 1


def _problem(
    detail: Mapping[str, Any], model: type[Section], elsewhere: Mapping[str, str]
) -> Problem:
    location = tuple(detail["loc"])
    context = dict(detail.get("ctx", {}))
    if detail["type"] == "extra_forbidden":
        return _unknown(location, model, elsewhere)
    if detail["type"] == "missing":
        return _missing(location, model)
    if detail["type"] == "model_type":
        what = "expected a section" if location else "expected a table of sections"
        return Problem(_dotted(location), what, _section_hint(location))
    if "key" in context:
        location += tuple(context["key"].split("."))
    hint = context.get("hint") or _meaning(model, location)
    return Problem(_dotted(location), words_of(detail), hint)


def words_of(detail: Mapping[str, Any]) -> str:
    """What one of pydantic's errors says of a value, with that value."""
    words = _WORDS.get(detail["type"], str(detail["msg"]).replace("{", "{{").replace("}", "}}"))
    filled = words.format_map(dict(detail.get("ctx", {})) | {"value": _shown(detail["input"])})
    return _without_middle(filled)


def _unknown(
    location: tuple[Any, ...], model: type[Section], elsewhere: Mapping[str, str]
) -> Problem:
    section, name = _section_at(model, location[:-1]), str(location[-1])
    kind = "section" if len(location) == 1 else "key"
    what = f"unknown {kind}"
    if kind == "section" and name in elsewhere:
        return Problem(name, what, elsewhere[name])
    homes = [path for path in keys_of(model) if path[-1] == name]
    if withdrawn := WITHDRAWN.get(_dotted(location)):
        return Problem(_dotted(location), "is no key any more", withdrawn)
    close = difflib.get_close_matches(name, list(_names(section)), n=1, cutoff=0.6)
    if close:
        hint = f"did you mean {close[0]}?"
    elif homes:
        hint = f"{name} belongs under [{homes[0][0]}]"
    else:
        hint = f"known here: {', '.join(_names(section))}"
    return Problem(_dotted(location), what, hint)


def _missing(location: tuple[Any, ...], model: type[Section]) -> Problem:
    if len(location) == 1:
        what = f"the section [{location[0]}] is missing"
        return Problem(_dotted(location), what, _section_hint(location))
    if isinstance(location[-1], int):
        return Problem(_dotted(location[:-1]), "has too few entries", _meaning(model, location))
    return Problem(_dotted(location), "missing", _meaning(model, location))


def _section_hint(location: tuple[Any, ...]) -> str:
    if not location:
        return ""
    return f"start a line with [{location[0]}] and write its keys below"


def _meaning(model: type[Section], location: tuple[Any, ...]) -> str:
    """What the key means: the text under its field."""
    section: type[Section] | None = model
    for index, part in enumerate(location):
        if section is None or isinstance(part, int):
            break
        fields = {field.alias or name: field for name, field in section.model_fields.items()}
        if part not in fields:
            break
        if index:
            return f"{part}: {' '.join((fields[part].description or '').split())}"
        section = _section_of(fields[part].annotation)
    return ""


def _section_at(model: type[Section], location: tuple[Any, ...]) -> type[Section]:
    for part in location:
        model = _section_of(model.model_fields[part].annotation) or model
    return model


def _section_of(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        return next(filter(None, map(_section_of, get_args(annotation))), None)
    return None


def _names(section: type[Section]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield field.alias or name


def keys_of(model: type[Section]) -> Iterator[tuple[str, str]]:
    """(section, key) of everything that such a file may say."""
    for name, field in model.model_fields.items():
        section = _section_of(field.annotation)
        for key in _names(section) if section else ():
            yield name, key


def _dotted(location: tuple[Any, ...]) -> str:
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
