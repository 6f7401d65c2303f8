from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Challenge(_message.Message):
    __slots__ = ("version", "nonce")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    version: int
    nonce: bytes
    def __init__(self, version: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("version", "run_id", "peer_id", "incarnation", "purpose", "tag", "signature")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    version: int
    run_id: bytes
    peer_id: str
    incarnation: bytes
    purpose: int
    tag: bytes
    signature: bytes
    def __init__(self, version: _Optional[int] = ..., run_id: _Optional[bytes] = ..., peer_id: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., purpose: _Optional[int] = ..., tag: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    def __init__(self, incarnation: _Optional[bytes] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    detail: str
    def __init__(self, reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Broken(_message.Message):
    __slots__ = ("suspect", "reason")
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    suspect: str
    reason: str
    def __init__(self, suspect: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class BlobRequest(_message.Message):
    __slots__ = ("name", "manifest", "arena", "chunk")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    name: str
    manifest: bool
    arena: int
    chunk: int
    def __init__(self, name: _Optional[str] = ..., manifest: bool = ..., arena: _Optional[int] = ..., chunk: _Optional[int] = ...) -> None: ...
