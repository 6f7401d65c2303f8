"""Base class and value types of all sections of the configuration files."""

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

from atom.base.units import parse_bits_per_s, parse_bytes, parse_seconds, parse_share


class Section(BaseModel):
    """Base class of a section (TOML table): strict, frozen, unknown keys refused.

    The docstring under each field is the key's meaning, which error hints show to users.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def refuse_given(self, keys: Iterable[str], what: str, hint: str) -> None:
        """Raise a validation error for the first of these keys whose value is not its default.

        Call it from within a validator.

        Args:
            keys: keys of this section.
            what: problem with such a key; the message puts the key before it.
            hint: advice to the user; if empty, the meaning of the key is shown instead.

        Raises:
            PydanticCustomError: a key's value is not its default.
        """
        for key in keys:
            default = type(self).model_fields[key].get_default(call_default_factory=True)
            if getattr(self, key) != default:
                refuse(key, what, hint)


def refuse(key: str, what: str, hint: str = "") -> NoReturn:
    """Raise the validation error of a key, with a message and a hint.

    Call it from within a validator. Braces in the texts are safe: the texts are passed as context,
    not as the template.

    Args:
        key: the refused key, relative to the section that validates.
        what: problem with the key's value; messages put the key before it.
        hint: advice to the user; if empty, the meaning of the key is shown instead.

    Raises:
        PydanticCustomError: always.
    """
    raise PydanticCustomError("refused", "{what}", {"key": key, "what": what, "hint": hint})


def one_of(names: Iterable[str]) -> str:
    """Return the pattern that matches exactly the given names."""
    return f"^({'|'.join(map(re.escape, names))})$"


def _with_unit(parse: Callable[[str], float], example: str) -> BeforeValidator:
    """Return a validator that takes a quantity as a string with a unit, such as `example`."""

    def read(value: Any) -> float:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} has no unit; write a string such as {example!r}")
        return parse(value)

    return BeforeValidator(read)


def _written(form: str) -> PlainSerializer:
    """Return a serializer that writes a quantity with its unit, so that it can be parsed again."""
    return PlainSerializer(lambda value: form.format(value), return_type=str)


WORDS = r"^[^\x00-\x1f\x7f-\x9f]+$"
"""Pattern of a text without control characters, because untrusted text may reach a terminal."""
PathText = Annotated[str, Field(min_length=1, max_length=4096, pattern=WORDS)]
"""File, folder or glob, as written in the file."""

Count = Annotated[int, Field(ge=1, le=2**31)]

Fraction = Annotated[float, Field(ge=0, lt=1)]

Bytes = Annotated[int, _with_unit(parse_bytes, "8 GiB"), _written("{} B")]
"""Size in bytes, written with its unit: "8 GiB"."""

Share = Annotated[float, _with_unit(parse_share, "1 %"), Field(ge=0, le=1), _written("{:.6%}")]
"""Share of a whole, written in percent: "1 %"."""

BitsPerSecond = Annotated[float, _with_unit(parse_bits_per_s, "400 Mbit/s"), _written("{:f} bit/s")]
"""Bandwidth in bit/s, written with its unit: "400 Mbit/s"."""

Seconds = Annotated[float, _with_unit(parse_seconds, "10 min"), _written("{:f} s")]
"""Duration in seconds, written with its unit: "10 min"."""

PeerId = Annotated[str, Field(pattern=r"^12D3KooW[1-9A-HJ-NP-Za-km-z]{44}$")]
"""Ed25519 peer id, as `atom id` prints it; the pattern catches typing errors only."""

PEER_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,23}"
"""Pattern of a peer's name: short and printable, so that it cannot imitate other screen output."""

Precision = Literal["float32", "bfloat16", "float16"]
"""Number format in which a model computes, by PyTorch's name."""
PRECISION_NAMES: tuple[Precision, ...] = get_args(Precision)
