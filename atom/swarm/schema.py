"""Bounded protobuf from annotations: a frozen dataclass or NamedTuple is its own wire schema.

A message's fields are numbered in the order of their declaration. A field is bytes, str, bool, int
(unsigned), float, a StrEnum or another message; or such a type or None; or a tuple of such a type.
`Annotated` gives the bounds: a test of the value, and for a tuple the largest number of items. They
are required for bytes, text and tuples:

    incarnation: Annotated[bytes, lambda raw: len(raw) == 16]
    voters: Annotated[tuple[Voter, ...], 9]

Numbers without a test are finite and below 2^63. `decode` refuses bytes with a named reason, or
returns a message whose fields are all within their bounds, so callers check no form again.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from atom.base.errors import PeerRefused, Reason

MAX_INT = 2**63 - 1
_PACKAGE = "atom"
_WIRE_TYPES = {
    bytes: FieldDescriptorProto.TYPE_BYTES,
    str: FieldDescriptorProto.TYPE_STRING,
    bool: FieldDescriptorProto.TYPE_BOOL,
    int: FieldDescriptorProto.TYPE_UINT64,
    float: FieldDescriptorProto.TYPE_DOUBLE,
}

T = TypeVar("T")
Kind = Callable[..., Any]
"""Class of a message."""


@dataclass(frozen=True)
class _Field:
    name: str
    kind: type
    """Type of the value, or of each item of a tuple."""
    accepts: Callable[[Any], bool]
    most: int | None
    """Largest number of items: the bound of a tuple; 1 for an optional field and for a message;
    None for a plain value, which is not repeated on the wire."""
    is_tuple: bool
    is_optional: bool
    is_message: bool


def encode(message: object) -> bytes:
    """Return the bytes of a message. Values are not checked: the receiver's `decode` does that."""
    kind: Kind = type(message)
    wire = _wire_class(kind)()
    _fill(wire, message, kind)
    return bytes(wire.SerializeToString())


def decode(kind: Callable[..., T], raw: bytes, max_bytes: int) -> T:
    """Return the message of class `kind` in `raw`, with every field within its bounds.

    Raises:
        PeerRefused: TOO_LARGE, MALFORMED or NOT_FINITE. No other error is raised.
    """
    if len(raw) > max_bytes:
        raise PeerRefused(Reason.TOO_LARGE, f"{kind.__name__} of {len(raw)} bytes")
    wire = _wire_class(kind)()
    try:
        wire.ParseFromString(raw)
    except DecodeError as error:
        raise PeerRefused(Reason.MALFORMED, f"not a {kind.__name__}") from error
    return _read(wire, kind)


def _fill(wire: Any, message: object, kind: Any) -> None:
    assert isinstance(message, kind), f"{message!r} is not a {kind.__name__}"
    for field in _fields(kind):
        value = getattr(message, field.name)
        if field.most is None:
            setattr(wire, field.name, value)
            continue
        items = value if field.is_tuple else () if value is None else (value,)
        part = getattr(wire, field.name)
        if field.is_message:
            for item in items:
                _fill(part.add(), item, field.kind)
        else:
            part.extend(items)


def _read(wire: Any, kind: Callable[..., T]) -> T:
    return kind(**{field.name: _read_field(wire, field) for field in _fields(kind)})


def _read_field(wire: Any, field: _Field) -> Any:
    found = getattr(wire, field.name)
    if field.most is None:
        return _checked(found, field)
    if len(found) > field.most:
        raise PeerRefused(Reason.TOO_LARGE, f"{len(found)} {field.name}, at most {field.most}")
    items = tuple(_checked(item, field) for item in found)
    if field.is_tuple:
        return items
    if not items and not field.is_optional:
        raise PeerRefused(Reason.MALFORMED, f"{field.name} is missing")
    return next(iter(items), None)


def _checked(found: Any, field: _Field) -> Any:
    if field.is_message:
        return _read(found, field.kind)
    if not field.accepts(found):
        infinite = type(found) is float and not math.isfinite(found)
        reason = Reason.NOT_FINITE if infinite else Reason.MALFORMED
        raise PeerRefused(reason, f"{field.name} is out of bounds")
    if type(found) is not str:
        return found
    return _one_copy(found) if field.kind is str and len(found) <= 64 else field.kind(found)


@lru_cache(maxsize=8192)
def _one_copy(text: str) -> str:
    """Return the cached copy of a text: a long chain repeats the ids of few peers.

    `sys.intern` would not do: interned texts may never be freed.
    """
    return text


@cache
def _fields(message: Kind) -> tuple[_Field, ...]:
    hints = get_type_hints(message, include_extras=True)
    return tuple(_field(name, hint) for name, hint in hints.items())


def _field(name: str, hint: Any) -> _Field:
    bounds: list[Any] = []
    is_tuple = is_optional = False
    while (origin := get_origin(hint)) is not None:
        if origin is Annotated:
            bounds += hint.__metadata__
            hint = hint.__origin__
        elif origin is tuple:
            is_tuple, hint = True, get_args(hint)[0]
        else:
            assert origin in (Union, UnionType), f"{name}: {origin} cannot be sent"
            (hint,) = (each for each in get_args(hint) if each is not NoneType)
            is_optional = True
    tests = [bound for bound in bounds if callable(bound)]
    limits = [bound for bound in bounds if isinstance(bound, int)]
    assert limits or not is_tuple, f"{name} has no maximum"
    is_message = not issubclass(hint, tuple(_WIRE_TYPES))
    accepts = tests[0] if tests else bool if is_message else _usual_test(name, hint)
    most = limits[0] if is_tuple else 1 if is_optional or is_message else None
    return _Field(name, hint, accepts, most, is_tuple, is_optional, is_message)


def _usual_test(name: str, kind: type) -> Callable[[Any], bool]:
    if issubclass(kind, StrEnum):
        return {member.value for member in kind}.__contains__
    assert kind in (bool, int, float), f"{name} has no bound"
    return math.isfinite if kind is float else lambda number: number <= MAX_INT


@cache
def _wire_class(message: Kind) -> type[Any]:
    file = FileDescriptorProto(name=message.__name__, package=_PACKAGE, syntax="proto3")
    file.message_type.extend(_described(kind) for kind in dict.fromkeys(_reached(message)))
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{message.__name__}"))


def _reached(message: Kind) -> Iterator[Kind]:
    """Yield a message class and all message classes of its fields, some of them repeatedly."""
    yield message
    for field in _fields(message):
        if field.is_message:
            yield from _reached(field.kind)


def _described(message: Kind) -> DescriptorProto:
    described = DescriptorProto(name=message.__name__)
    for number, field in enumerate(_fields(message), start=1):
        is_many = field.most is not None
        entry = described.field.add(name=field.name, number=number)
        entry.label = entry.LABEL_REPEATED if is_many else entry.LABEL_OPTIONAL
        if field.is_message:
            entry.type, entry.type_name = entry.TYPE_MESSAGE, f".{_PACKAGE}.{field.kind.__name__}"
        else:
            entry.type = next(
                _WIRE_TYPES[kind] for kind in field.kind.__mro__ if kind in _WIRE_TYPES
            )
    return described
