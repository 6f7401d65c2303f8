"""What all sections of the configuration files share: strict, frozen, unknown keys refused; and the
types of their values."""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, NoReturn, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
)
from pydantic_core import PydanticCustomError

from atom.base.units import parse_bits_per_s, parse_bytes, parse_seconds


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


def one_of(names: Iterable[str]) -> str:
    """The pattern of a key that takes one of these."""
    return f"^({'|'.join(map(re.escape, names))})$"


def _with_unit(parse: Callable[[str], float], example: str) -> BeforeValidator:
    def read(value: Any) -> float:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} has no unit; write a text such as {example!r}")
        return parse(value)

    return BeforeValidator(read)


def _written(form: str) -> PlainSerializer:
    return PlainSerializer(lambda value: form.format(value), return_type=str)


WORDS = r"^[^\x00-\x1f\x7f-\x9f]+$"
"""A text without control characters: a stranger's may be shown in a terminal."""
PathText = Annotated[str, Field(min_length=1, max_length=4096, pattern=WORDS)]
"""A file, folder or glob as it was written."""

Count = Annotated[int, Field(ge=1, le=2**31)]

Fraction = Annotated[float, Field(ge=0, lt=1)]

Bytes = Annotated[int, _with_unit(parse_bytes, "8 GiB"), _written("{} B")]
"""A size, written with its unit: "8 GiB"."""

BitsPerSecond = Annotated[float, _with_unit(parse_bits_per_s, "400 Mbit/s"), _written("{:f} bit/s")]
"""A bandwidth, written with its unit: "400 Mbit/s"."""

Seconds = Annotated[float, _with_unit(parse_seconds, "10 min"), _written("{:f} s")]
"""A time, written with its unit: "10 min"."""

PeerId = Annotated[str, Field(pattern=r"^12D3KooW[1-9A-HJ-NP-Za-km-z]{44}$")]
"""How Ed25519 peer ids are written, which `atom id` prints; checked for slips, not for whose."""

PEER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,23}"
"""The pattern of a peer's name: nothing in it can be taken for something else on a screen."""

Precision = Literal["float32", "bfloat16", "float16"]
"""A number format that a model may compute in, by PyTorch's name."""
PRECISION_NAMES: tuple[Precision, ...] = get_args(Precision)
