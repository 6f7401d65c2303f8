"""What all sections of the configuration files share: strict, frozen, unknown keys refused."""

from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic_core import PydanticCustomError

from atom.base.units import parse_bits_per_s, parse_bytes, parse_seconds, parse_watts


class Section(BaseModel):
    """A table of a file. The text under each field is its meaning."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def refuse(key: str, what: str, hint: str = "") -> NoReturn:
    """Fails a check between keys; `key` is relative to the section that checks.

    Braces in the text are safe: they travel as context, not as template.
    """
    raise PydanticCustomError("refused", "{what}", {"key": key, "what": what, "hint": hint})


def _bytes_of(value: Any) -> int:
    return parse_bytes(_text(value, "8 GiB"))


def _bits_per_s_of(value: Any) -> float:
    return parse_bits_per_s(_text(value, "400 Mbit/s"))


def _seconds_of(value: Any) -> float:
    return parse_seconds(_text(value, "10 min"))


def _watts_of(value: Any) -> float:
    return parse_watts(_text(value, "200 W"))


def _text(value: Any, example: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; write a text such as {example!r}")
    return value


WORDS = r"^[^\x00-\x1f\x7f-\x9f]+$"
"""A text without control characters: a stranger's may be shown in a terminal."""
PathText = Annotated[str, Field(min_length=1, max_length=4096, pattern=WORDS)]
"""A file, folder or glob as it was written."""

Count = Annotated[int, Field(ge=1, le=2**31)]

Fraction = Annotated[float, Field(ge=0, lt=1)]

Bytes = Annotated[
    int, BeforeValidator(_bytes_of), PlainSerializer(lambda count: f"{count} B", return_type=str)
]
"""A size, written with its unit: "8 GiB"."""

BitsPerSecond = Annotated[
    float,
    BeforeValidator(_bits_per_s_of),
    PlainSerializer(lambda rate: f"{rate:f} bit/s", return_type=str),
]
"""A bandwidth, written with its unit: "400 Mbit/s"."""

Seconds = Annotated[
    float,
    BeforeValidator(_seconds_of),
    PlainSerializer(lambda seconds: f"{seconds:f} s", return_type=str),
]
"""A time, written with its unit: "10 min"."""

Watts = Annotated[
    float,
    BeforeValidator(_watts_of),
    PlainSerializer(lambda watts: f"{watts:f} W", return_type=str),
]
"""A power, written with its unit: "200 W"."""
