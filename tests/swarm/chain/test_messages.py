"""Messages survive the wire unchanged; nothing else gets through, and nothing else is raised."""

import dataclasses
import math

import pytest
from commit_samples import BALLOT, COMMIT, PARENT, PARTS, PEERS, VALUE, VOTERS

from atom.base.reasons import Reason
from atom.swarm.chain.commit import Contribution
from atom.swarm.chain.messages import (
    Abort,
    Accept,
    Accepted,
    AcceptedVote,
    CommitNotice,
    Message,
    Nack,
    Prepare,
    Prevote,
    PrevoteAnswer,
    Promise,
    Ring,
    Suspect,
    decode,
    encode,
)
from tests.swarm.refusals import refusal

EXAMPLES: list[Message] = [
    Prevote(PARENT),
    Prevote(PARENT, VOTERS),
    PrevoteAnswer(PARENT),
    PrevoteAnswer(PARENT, "busy"),
    Prepare(PARENT, BALLOT),
    Prepare(PARENT, BALLOT, VOTERS),
    Promise(PARENT, BALLOT, None, None, 0, 0.0, b""),
    Promise(PARENT, BALLOT, Accepted(BALLOT, VALUE), None, 8, 20.25, b"s" * 32, True),
    Promise(PARENT, BALLOT, None, Accepted(BALLOT, VALUE), 8, -0.0, b"s" * 32),
    Nack(PARENT, BALLOT, None, "wrong-head"),
    Nack(PARENT, BALLOT, BALLOT, "ballot-too-low"),
    Ring(PARENT, BALLOT, PARTS),
    Ring(PARENT, BALLOT, PARTS, shares=(3, 0, 1000)),
    Suspect(PARENT, BALLOT, PEERS[2]),
    Suspect(PARENT, BALLOT, ""),
    Accept(PARENT, BALLOT, VALUE),
    AcceptedVote(PARENT, BALLOT, b"x" * 64),
    CommitNotice(COMMIT),
    Abort(PARENT, BALLOT, "early"),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_every_message_survives_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


def test_the_digest_of_a_value_survives_the_wire() -> None:
    arrived = decode(encode(Accept(PARENT, BALLOT, VALUE)))
    assert isinstance(arrived, Accept)
    assert arrived.value.digest() == VALUE.digest()
    assert arrived.value.voters_next[3].absences == 3  # left out of equality, not of the wire


def bad(message: Message, **changes: object) -> Message:
    return dataclasses.replace(message, **changes)  # type: ignore[arg-type]


BAD = [
    bad(Prevote(PARENT), parent=b"short"),
    bad(PrevoteAnswer(PARENT), refusal="x" * 257),
    bad(Suspect(PARENT, BALLOT, ""), peer_id="nobody"),
    bad(Suspect(PARENT, BALLOT, ""), peer_id=PEERS[0] + "\n"),
    bad(Ring(PARENT, BALLOT, ()), members=(Contribution(PEERS[0], b"i" * 16, 2**41, 0.0),)),
    bad(Ring(PARENT, BALLOT, ()), members=(Contribution(PEERS[0], b"i" * 16, 1, math.nan),)),
    bad(Ring(PARENT, BALLOT, ()), members=(Contribution(PEERS[0], b"i" * 15, 1, 0.0),)),
    bad(Accept(PARENT, BALLOT, VALUE), value=dataclasses.replace(VALUE, gradient_norm=-1.0)),
    bad(Accept(PARENT, BALLOT, VALUE), value=dataclasses.replace(VALUE, gradient_norm=math.inf)),
    bad(AcceptedVote(PARENT, BALLOT, b"x" * 64), signature=b"x" * 63),
    bad(Nack(PARENT, BALLOT, None, ""), ballot=None),
]


@pytest.mark.parametrize("message", BAD)
def test_a_field_out_of_bounds_is_refused(message: Message) -> None:
    assert refusal(decode, encode(message)) in (Reason.MALFORMED, Reason.NOT_FINITE)


CROWD = dataclasses.replace(VALUE, voters_next=VOTERS * 3)
LARGE = [
    Accept(PARENT, BALLOT, CROWD),
    Prepare(PARENT, BALLOT, VOTERS * 3),
    Ring(PARENT, BALLOT, PARTS, shares=(1,) * 65),
    Ring(PARENT, BALLOT, PARTS * 1000),
]


@pytest.mark.parametrize("message", LARGE)
def test_too_many_are_too_large(message: Message) -> None:
    assert refusal(decode, encode(message)) is Reason.TOO_LARGE


def test_a_message_is_one_and_not_none_or_two() -> None:
    for raw in (b"", encode(EXAMPLES[0]) + encode(EXAMPLES[-1])):
        assert refusal(decode, raw) is Reason.MALFORMED
