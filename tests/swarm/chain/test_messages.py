"""Messages survive the wire unchanged; nothing else gets through, and nothing else is raised."""

import dataclasses
import math
import random

import pytest
from commit_samples import BALLOT, COMMIT, PARENT, PARTS, PEERS, VALUE, VOTERS
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Contribution
from atom.swarm.chain.messages import (
    MAX_MESSAGE_BYTES,
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
from atom.swarm.identity import is_peer_id
from tests.swarm.refusals import refusal

EXAMPLES: list[Message] = [
    Prevote(PARENT, 1),
    Prevote(PARENT, 1, VOTERS),
    PrevoteAnswer(PARENT, 1),
    PrevoteAnswer(PARENT, 1, "busy"),
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
    bad(Prevote(PARENT, 1), parent=b"short"),
    bad(Prevote(PARENT, 1), serial=2**41),
    bad(PrevoteAnswer(PARENT, 1), refusal="x" * 257),
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


def test_too_many_voters_or_members_are_too_large() -> None:
    crowd = dataclasses.replace(VALUE, voters_next=VOTERS * 3)
    for message in (Accept(PARENT, BALLOT, crowd), Prepare(PARENT, BALLOT, VOTERS * 3)):
        assert refusal(decode, encode(message)) is Reason.TOO_LARGE


def test_no_message_may_be_long() -> None:
    wide = encode(Ring(PARENT, BALLOT, PARTS * 1000))
    assert len(wide) > MAX_MESSAGE_BYTES
    assert refusal(decode, wide) is Reason.TOO_LARGE


def test_the_empty_message_is_malformed() -> None:
    assert refusal(decode, b"") is Reason.MALFORMED


def test_a_peer_has_one_name() -> None:
    assert is_peer_id(PEERS[1])
    for text in ("", "1", PEERS[1] + " ", "1" + PEERS[1], PEERS[1][:-1], "ä", "z" * 100_000):
        assert not is_peer_id(text)


def decode_or_none(raw: bytes) -> Message | None:
    """Lets any exception but a refusal of form through, which fails the test."""
    try:
        return decode(raw)
    except PeerRefused as refused:
        if refused.reason not in (Reason.MALFORMED, Reason.TOO_LARGE, Reason.NOT_FINITE):
            raise
        return None


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_random_bytes_raise_only_refusals(raw: bytes) -> None:
    decode_or_none(raw)


@given(st.integers(min_value=0, max_value=2**32), st.sampled_from(EXAMPLES))
@settings(max_examples=600, deadline=None)
def test_mutated_messages_raise_only_refusals(seed: int, message: Message) -> None:
    dice = random.Random(seed)
    raw = bytearray(encode(message))
    for _ in range(dice.randint(1, 6)):
        position = dice.randrange(len(raw) + 1)
        if dice.random() < 0.5 and raw:
            raw[position % len(raw)] = dice.randrange(256)
        elif dice.random() < 0.5:
            raw[position:position] = dice.randbytes(dice.randint(1, 8))
        else:
            del raw[position : position + dice.randint(1, 40)]
    arrived = decode_or_none(bytes(raw))
    assert arrived is None or decode(encode(arrived)) == arrived
