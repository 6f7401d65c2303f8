from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SignedRecord(_message.Message):
    __slots__ = ("kind", "payload", "signature")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    payload: bytes
    signature: bytes
    def __init__(self, kind: _Optional[str] = ..., payload: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class LeaseBody(_message.Message):
    __slots__ = ("run", "owner", "peer_id", "expires_at", "incarnation", "serial", "issued_at", "state", "head", "round", "work", "sequences", "rounds_joined", "sequences_committed", "sequences_per_s", "tokens_per_s", "pass_seconds", "loss", "state_digest", "addresses", "reached", "relays", "lines", "links", "ended_attempts", "branches", "branches_before", "void_passes", "void_cause")
    RUN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    ISSUED_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_JOINED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_PER_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    PASS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    ENDED_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    VOID_PASSES_FIELD_NUMBER: _ClassVar[int]
    VOID_CAUSE_FIELD_NUMBER: _ClassVar[int]
    run: str
    owner: str
    peer_id: str
    expires_at: float
    incarnation: bytes
    serial: int
    issued_at: float
    state: str
    head: bytes
    round: int
    work: int
    sequences: int
    rounds_joined: int
    sequences_committed: int
    sequences_per_s: float
    tokens_per_s: float
    pass_seconds: float
    loss: float
    state_digest: bytes
    addresses: _containers.RepeatedScalarFieldContainer[str]
    reached: str
    relays: bool
    lines: _containers.RepeatedScalarFieldContainer[str]
    links: _containers.RepeatedCompositeFieldContainer[LinkBody]
    ended_attempts: _containers.RepeatedCompositeFieldContainer[EndedAttempt]
    branches: _containers.RepeatedCompositeFieldContainer[BranchBody]
    branches_before: int
    void_passes: int
    void_cause: str
    def __init__(self, run: _Optional[str] = ..., owner: _Optional[str] = ..., peer_id: _Optional[str] = ..., expires_at: _Optional[float] = ..., incarnation: _Optional[bytes] = ..., serial: _Optional[int] = ..., issued_at: _Optional[float] = ..., state: _Optional[str] = ..., head: _Optional[bytes] = ..., round: _Optional[int] = ..., work: _Optional[int] = ..., sequences: _Optional[int] = ..., rounds_joined: _Optional[int] = ..., sequences_committed: _Optional[int] = ..., sequences_per_s: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., pass_seconds: _Optional[float] = ..., loss: _Optional[float] = ..., state_digest: _Optional[bytes] = ..., addresses: _Optional[_Iterable[str]] = ..., reached: _Optional[str] = ..., relays: bool = ..., lines: _Optional[_Iterable[str]] = ..., links: _Optional[_Iterable[_Union[LinkBody, _Mapping]]] = ..., ended_attempts: _Optional[_Iterable[_Union[EndedAttempt, _Mapping]]] = ..., branches: _Optional[_Iterable[_Union[BranchBody, _Mapping]]] = ..., branches_before: _Optional[int] = ..., void_passes: _Optional[int] = ..., void_cause: _Optional[str] = ...) -> None: ...

class EndedAttempt(_message.Message):
    __slots__ = ("round", "reason")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round: int
    reason: str
    def __init__(self, round: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class BranchBody(_message.Message):
    __slots__ = ("round", "backing", "name")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BACKING_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    round: int
    backing: int
    name: bytes
    def __init__(self, round: _Optional[int] = ..., backing: _Optional[int] = ..., name: _Optional[bytes] = ...) -> None: ...

class LinkBody(_message.Message):
    __slots__ = ("peer", "round_trip_s", "bytes_per_s")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    peer: bytes
    round_trip_s: float
    bytes_per_s: float
    def __init__(self, peer: _Optional[bytes] = ..., round_trip_s: _Optional[float] = ..., bytes_per_s: _Optional[float] = ...) -> None: ...

class PackageVersion(_message.Message):
    __slots__ = ("package", "version")
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    package: str
    version: str
    def __init__(self, package: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class DataAmount(_message.Message):
    __slots__ = ("tokens", "samples", "held_back")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    samples: int
    held_back: int
    def __init__(self, tokens: _Optional[int] = ..., samples: _Optional[int] = ..., held_back: _Optional[int] = ...) -> None: ...

class ManifestBody(_message.Message):
    __slots__ = ("run", "owner", "run_file_zlib", "graph_hash", "program_hash", "versions", "data_digest", "initial_state_digest", "founder_incarnation", "created_at", "data_amount")
    RUN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RUN_FILE_ZLIB_FIELD_NUMBER: _ClassVar[int]
    GRAPH_HASH_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_HASH_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DATA_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INITIAL_STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FOUNDER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    DATA_AMOUNT_FIELD_NUMBER: _ClassVar[int]
    run: str
    owner: str
    run_file_zlib: bytes
    graph_hash: str
    program_hash: str
    versions: _containers.RepeatedCompositeFieldContainer[PackageVersion]
    data_digest: str
    initial_state_digest: bytes
    founder_incarnation: bytes
    created_at: float
    data_amount: DataAmount
    def __init__(self, run: _Optional[str] = ..., owner: _Optional[str] = ..., run_file_zlib: _Optional[bytes] = ..., graph_hash: _Optional[str] = ..., program_hash: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[PackageVersion, _Mapping]]] = ..., data_digest: _Optional[str] = ..., initial_state_digest: _Optional[bytes] = ..., founder_incarnation: _Optional[bytes] = ..., created_at: _Optional[float] = ..., data_amount: _Optional[_Union[DataAmount, _Mapping]] = ...) -> None: ...
