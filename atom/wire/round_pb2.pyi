from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Voter(_message.Message):
    __slots__ = ("peer_id", "incarnation", "absences")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ABSENCES_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    incarnation: bytes
    absences: int
    def __init__(self, peer_id: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., absences: _Optional[int] = ...) -> None: ...

class Ballot(_message.Message):
    __slots__ = ("attempt", "coordinator", "incarnation")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    coordinator: str
    incarnation: bytes
    def __init__(self, attempt: _Optional[int] = ..., coordinator: _Optional[str] = ..., incarnation: _Optional[bytes] = ...) -> None: ...

class Contribution(_message.Message):
    __slots__ = ("peer_id", "incarnation", "sequences", "loss_sum", "carrier")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    incarnation: bytes
    sequences: int
    loss_sum: float
    carrier: str
    def __init__(self, peer_id: _Optional[str] = ..., incarnation: _Optional[bytes] = ..., sequences: _Optional[int] = ..., loss_sum: _Optional[float] = ..., carrier: _Optional[str] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("parent", "round", "origin", "result_digest", "gradient_norm", "parent_state_digest", "contributions", "voters_next", "survivors")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    RESULT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    PARENT_STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    VOTERS_NEXT_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    round: int
    origin: Ballot
    result_digest: bytes
    gradient_norm: float
    parent_state_digest: bytes
    contributions: _containers.RepeatedCompositeFieldContainer[Contribution]
    voters_next: _containers.RepeatedCompositeFieldContainer[Voter]
    survivors: _containers.RepeatedCompositeFieldContainer[Voter]
    def __init__(self, parent: _Optional[bytes] = ..., round: _Optional[int] = ..., origin: _Optional[_Union[Ballot, _Mapping]] = ..., result_digest: _Optional[bytes] = ..., gradient_norm: _Optional[float] = ..., parent_state_digest: _Optional[bytes] = ..., contributions: _Optional[_Iterable[_Union[Contribution, _Mapping]]] = ..., voters_next: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ..., survivors: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ...) -> None: ...

class Vote(_message.Message):
    __slots__ = ("voter", "signature")
    VOTER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    voter: Voter
    signature: bytes
    def __init__(self, voter: _Optional[_Union[Voter, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("value", "ballot", "votes", "survivors")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    value: Value
    ballot: Ballot
    votes: _containers.RepeatedCompositeFieldContainer[Vote]
    survivors: _containers.RepeatedCompositeFieldContainer[Voter]
    def __init__(self, value: _Optional[_Union[Value, _Mapping]] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., votes: _Optional[_Iterable[_Union[Vote, _Mapping]]] = ..., survivors: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("ballot", "value")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    value: Value
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Prevote(_message.Message):
    __slots__ = ("parent", "serial", "survivors")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    serial: int
    survivors: _containers.RepeatedCompositeFieldContainer[Voter]
    def __init__(self, parent: _Optional[bytes] = ..., serial: _Optional[int] = ..., survivors: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ...) -> None: ...

class PrevoteAnswer(_message.Message):
    __slots__ = ("parent", "serial", "refusal")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    serial: int
    refusal: str
    def __init__(self, parent: _Optional[bytes] = ..., serial: _Optional[int] = ..., refusal: _Optional[str] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("parent", "ballot", "survivors")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    ballot: Ballot
    survivors: _containers.RepeatedCompositeFieldContainer[Voter]
    def __init__(self, parent: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., survivors: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ...) -> None: ...

class Promise(_message.Message):
    __slots__ = ("parent", "ballot", "accepted", "accepted_before_branch", "sequences", "loss_sum", "state_digest", "leaving")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BEFORE_BRANCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    ballot: Ballot
    accepted: Accepted
    accepted_before_branch: Accepted
    sequences: int
    loss_sum: float
    state_digest: bytes
    leaving: bool
    def __init__(self, parent: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., accepted_before_branch: _Optional[_Union[Accepted, _Mapping]] = ..., sequences: _Optional[int] = ..., loss_sum: _Optional[float] = ..., state_digest: _Optional[bytes] = ..., leaving: bool = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("parent", "ballot", "promised", "reason")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    ballot: Ballot
    promised: Ballot
    reason: str
    def __init__(self, parent: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., promised: _Optional[_Union[Ballot, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Ring(_message.Message):
    __slots__ = ("parent", "ballot", "members", "one_shot")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ONE_SHOT_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    ballot: Ballot
    members: _containers.RepeatedCompositeFieldContainer[Contribution]
    one_shot: bool
    def __init__(self, parent: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Contribution, _Mapping]]] = ..., one_shot: bool = ...) -> None: ...

class RingStanding(_message.Message):
    __slots__ = ("lacks_step", "lacks_start", "unsent_step", "unsent_start", "blocked")
    LACKS_STEP_FIELD_NUMBER: _ClassVar[int]
    LACKS_START_FIELD_NUMBER: _ClassVar[int]
    UNSENT_STEP_FIELD_NUMBER: _ClassVar[int]
    UNSENT_START_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    lacks_step: int
    lacks_start: int
    unsent_step: int
    unsent_start: int
    blocked: bool
    def __init__(self, lacks_step: _Optional[int] = ..., lacks_start: _Optional[int] = ..., unsent_step: _Optional[int] = ..., unsent_start: _Optional[int] = ..., blocked: bool = ...) -> None: ...

class Suspect(_message.Message):
    __slots__ = ("parent", "ballot", "peer_id", "reason", "told_by", "standing")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOLD_BY_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    ballot: Ballot
    peer_id: str
    reason: str
    told_by: str
    standing: RingStanding
    def __init__(self, parent: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., peer_id: _Optional[str] = ..., reason: _Optional[str] = ..., told_by: _Optional[str] = ..., standing: _Optional[_Union[RingStanding, _Mapping]] = ...) -> None: ...

class Accept(_message.Message):
    __slots__ = ("parent", "ballot", "value")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    ballot: Ballot
    value: Value
    def __init__(self, parent: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class AcceptedVote(_message.Message):
    __slots__ = ("parent", "ballot", "value_digest", "signature")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    VALUE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    ballot: Ballot
    value_digest: bytes
    signature: bytes
    def __init__(self, parent: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., value_digest: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class CommitNotice(_message.Message):
    __slots__ = ("commit",)
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    commit: Commit
    def __init__(self, commit: _Optional[_Union[Commit, _Mapping]] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("parent", "ballot", "reason")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    ballot: Ballot
    reason: str
    def __init__(self, parent: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class RoundMessage(_message.Message):
    __slots__ = ("prevote", "prevote_answer", "prepare", "promise", "nack", "ring", "suspect", "accept", "accepted_vote", "commit", "abort")
    PREVOTE_FIELD_NUMBER: _ClassVar[int]
    PREVOTE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_VOTE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    prevote: Prevote
    prevote_answer: PrevoteAnswer
    prepare: Prepare
    promise: Promise
    nack: Nack
    ring: Ring
    suspect: Suspect
    accept: Accept
    accepted_vote: AcceptedVote
    commit: CommitNotice
    abort: Abort
    def __init__(self, prevote: _Optional[_Union[Prevote, _Mapping]] = ..., prevote_answer: _Optional[_Union[PrevoteAnswer, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., promise: _Optional[_Union[Promise, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ..., ring: _Optional[_Union[Ring, _Mapping]] = ..., suspect: _Optional[_Union[Suspect, _Mapping]] = ..., accept: _Optional[_Union[Accept, _Mapping]] = ..., accepted_vote: _Optional[_Union[AcceptedVote, _Mapping]] = ..., commit: _Optional[_Union[CommitNotice, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ...) -> None: ...
