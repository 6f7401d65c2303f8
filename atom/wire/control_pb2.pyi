from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("deadline_seconds",)
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    deadline_seconds: float
    def __init__(self, deadline_seconds: _Optional[float] = ...) -> None: ...

class TraceRequest(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    def __init__(self, ticket: _Optional[int] = ...) -> None: ...

class TraceReply(_message.Message):
    __slots__ = ("ticket", "trace", "summary")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    trace: str
    summary: str
    def __init__(self, ticket: _Optional[int] = ..., trace: _Optional[str] = ..., summary: _Optional[str] = ...) -> None: ...

class ReloadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Changed(_message.Message):
    __slots__ = ("key", "live")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    key: str
    live: bool
    def __init__(self, key: _Optional[str] = ..., live: bool = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("message", "hint", "kind")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    message: str
    hint: str
    kind: str
    def __init__(self, message: _Optional[str] = ..., hint: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class ReloadReply(_message.Message):
    __slots__ = ("changed", "refusal")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    changed: _containers.RepeatedCompositeFieldContainer[Changed]
    refusal: Refusal
    def __init__(self, changed: _Optional[_Iterable[_Union[Changed, _Mapping]]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class CommandReply(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...
