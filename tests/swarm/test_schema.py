"""Message classes as schemas: declared fields are sent, and nothing else is accepted."""

import math
from collections.abc import Iterator
from dataclasses import make_dataclass, replace
from typing import Annotated, Any, get_type_hints

import pytest

from atom.base.errors import Reason
from atom.swarm.chain import messages
from atom.swarm.chain.commit import Branch, MemberCount
from atom.swarm.identity import Identity
from atom.swarm.records.lease import MAX_ADDRESSES, Link
from atom.swarm.records.manifest import DataAmount, SignedRecord
from atom.swarm.schema import MAX_INT, decode, encode
from atom.swarm.state.arenas import ArenaManifest, BlobManifest
from tests.swarm.chain_samples import BALLOT, MESSAGES, PARENT, PARTS, PEERS, VALUE
from tests.swarm.refusals import refusal
from tests.swarm.swarm_samples import a_lease, a_manifest

UNBOUNDED = [bytes, str, tuple[int, ...], Annotated[tuple[int, ...], bool]]


@pytest.mark.parametrize("hint", UNBOUNDED)
def test_no_field_goes_without_a_bound(hint: Any) -> None:
    with pytest.raises(AssertionError):
        decode(make_dataclass("Unbounded", [("field", hint)]), b"", 1)


# ---- all that is sent

LINK = Link(b"87654321", 0.25, 1e9)
LEASE = a_lease(PEERS[0], links=(LINK,), branches=(Branch(7, 3, b"12345678"),))
MANIFEST = a_manifest(Identity.create(), data_amount=DataAmount(3, 2, 1))
BLOB = BlobManifest((ArenaManifest("w", "float32", 8, bytes(32)),))
SENT = [*MESSAGES, LEASE, MANIFEST, SignedRecord("lease", b"", bytes(64)), BLOB]
ABSURD: dict[type, list[Any]] = {
    bytes: [bytes(2**16 + 1)],
    str: ["\n" * 2**17],
    bool: [],
    int: [2**64 - 1],
    float: [math.nan, -1e300],
}


def spoiled(value: Any) -> Iterator[Any]:
    """Yield copies of a message with one field, also of an inner message, out of its bounds."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        yield value * 5000
        yield from ((*value[:-1], each) for last in value[-1:] for each in spoiled(last))
    elif value is None or type(value) in ABSURD:
        yield from ABSURD.get(type(value), ())
    elif isinstance(value, str):
        yield "unheard-of"
    else:
        fields = {name: getattr(value, name) for name in get_type_hints(type(value))}
        for name, field in fields.items():
            yield from (type(value)(**fields | {name: each}) for each in spoiled(field))


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: type(sent).__name__)
def test_no_field_that_a_stranger_sends_is_without_bounds(sent: Any) -> None:
    assert decode(type(sent), encode(sent), 10**4) == sent
    reasons = {refusal(decode, type(sent), encode(each), 1 << 30) for each in spoiled(sent)}
    assert reasons <= {Reason.MALFORMED, Reason.NOT_FINITE, Reason.TOO_LARGE}


@pytest.mark.parametrize(
    ("beyond", "reason"),
    [
        (replace(LEASE, addresses=("a\x1b[2J:1",)), Reason.MALFORMED),
        (replace(LEASE, addresses=("a:1",) * (MAX_ADDRESSES + 1)), Reason.TOO_LARGE),
        (replace(LEASE, incarnation=bytes(17)), Reason.MALFORMED),
        (replace(LEASE, serial=MAX_INT + 1), Reason.MALFORMED),
        (replace(LEASE, state="asleep"), Reason.MALFORMED),
        (replace(LEASE, name="ann bob"), Reason.MALFORMED),
        (replace(LEASE, name="a\x1b[2J"), Reason.MALFORMED),
        (replace(LEASE, name="x" * 25), Reason.MALFORMED),
        (replace(LEASE, links=(replace(LINK, peer=b"1"),)), Reason.MALFORMED),
        (replace(VALUE, origin=None), Reason.MALFORMED),
        (replace(VALUE, gradient_norm=-1.0), Reason.MALFORMED),
        (replace(VALUE, gradient_norm=math.nan), Reason.NOT_FINITE),
        (messages.Suspect(PARENT, BALLOT, "nobody"), Reason.MALFORMED),
        (MemberCount(PEERS[0] + "\n", b"i" * 16, 8, 1.0), Reason.MALFORMED),
        (replace(PARTS[0], sequences=2**24 + 1), Reason.MALFORMED),
    ],
)
def test_a_field_out_of_its_bounds_is_refused_by_name(beyond: Any, reason: Reason) -> None:
    raw = encode(beyond)
    assert refusal(decode, type(beyond), raw, 10**4) is reason
    assert refusal(decode, type(beyond), raw, len(raw) - 1) is Reason.TOO_LARGE


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_of_a_round_is_one_and_not_none_or_two(message: messages.Message) -> None:
    raw = messages.encode(message)
    assert messages.decode(raw) == message
    for several in (b"", raw + messages.encode(MESSAGES[type(message) is messages.Prevote])):
        assert refusal(messages.decode, several) is Reason.MALFORMED


def test_the_digest_of_a_value_survives_the_wire() -> None:
    arrived = decode(type(VALUE), encode(VALUE), 10**4)
    assert arrived.digest() == VALUE.digest()
    assert arrived.voters_next[3].absences == 3  # left out of equality, not of the wire
