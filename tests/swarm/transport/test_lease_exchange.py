"""Leases that known peers send each other: rules under a manual clock, then over real sockets."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest

from atom.base.errors import Reason
from atom.swarm.chain.commit import Head, Voter, genesis
from atom.swarm.chain.messages import MAX_RECORDS, Leases, decode, encode
from atom.swarm.chain.tenure import from_the_start
from atom.swarm.identity import Identity
from atom.swarm.records.lease import (
    GAP_SECONDS,
    LEASE_SECONDS,
    Lease,
    LeaseBook,
    PeerState,
    SignedLease,
    short_name,
)
from atom.swarm.records.manifest import LEASE_DOMAIN, encode_lease, lease_key
from atom.swarm.transport.lease_exchange import (
    DIGEST,
    HEARD_S,
    MAX_MATES,
    MESSAGES_AT_ONCE,
    REMEMBERED_S,
    SILENT_S,
    LeaseExchange,
    neighbour_names,
)
from atom.training.replica.pacing import RARELY_S
from tests.swarm.refusals import refusal
from tests.swarm.swarm_samples import a_lease, signed

RUN, UNIX = "shakespeare", 1_700_000_000.0
ANNA, BERT, CLEO, STRANGER = (Identity.create() for _ in range(4))
FOUNDER = ANNA.peer_id
PLACE = lease_key(RUN, FOUNDER)
TICK_S = 0.2


def head_of(*members: Identity) -> Head:
    first = genesis(b"m" * 32, b"s" * 32, Voter(FOUNDER, bytes(16)))
    return replace(first, members=tuple(member.peer_id for member in members))


def sign(who: Identity, lease: Lease, expires_at: float, run: str = RUN) -> SignedLease:
    return SignedLease(encode_lease(lease, run, FOUNDER, who, expires_at), lease, expires_at)


class Member:
    """Lease exchange of one peer, and the peer's book of leases."""

    def __init__(self, identity: Identity, head: Head) -> None:
        self.identity, self.peer_id = identity, identity.peer_id
        self.exchange, self.book = LeaseExchange(self.peer_id, PLACE), LeaseBook()
        self.exchange.know(head, 0.0)
        self.serials = count(1)

    def lease(self, **changes: object) -> Lease:
        return a_lease(self.peer_id, serial=next(self.serials), **changes)

    def publish(self, now: float, **changes: object) -> SignedLease:
        own = sign(self.identity, self.lease(**changes), UNIX + now + LEASE_SECONDS)
        self.exchange.publish(own)
        return own

    def hear(self, sender: str, message: Leases, now: float) -> Leases | None:
        decoded = decode(encode(message))
        assert isinstance(decoded, Leases)
        return self.exchange.hear(sender, decoded, now, UNIX + now)

    def look(self, now: float) -> set[str]:
        """Return the other peers that are fresh at `now`."""
        if heard_news(self):
            self.book.update(self.exchange.merged({}, now), now)
        return {peer for peer in self.book.fresh(now) if peer != self.peer_id}


def heard_news(member: Member) -> bool:
    has_changed = member.exchange.has_changed.is_set()
    member.exchange.has_changed.clear()
    return has_changed


def deliver(sender: Member, receiver: Member, message: Leases, now: float) -> None:
    """Let a member hear a message, the sender hear the answer to it, and so on."""
    answer = receiver.hear(sender.peer_id, message, now)
    if answer is not None:
        deliver(receiver, sender, answer, now)


@pytest.fixture
def anna() -> Member:
    return Member(ANNA, head_of(ANNA, BERT, CLEO))


def of(member: Member, peer: Identity, now: float) -> Lease | None:
    return member.exchange.merged({}, now).get(peer.peer_id)


def test_a_newer_record_of_a_mate_is_taken_and_an_older_one_never_again(anna: Member) -> None:
    old, new = (sign(BERT, a_lease(BERT.peer_id, serial=n), UNIX + 6 + n) for n in (1, 2))
    anna.hear(BERT.peer_id, Leases((old.record,)), 0.0)
    assert heard_news(anna)
    assert of(anna, BERT, 0.0) == old.lease
    anna.hear(CLEO.peer_id, Leases((new.record, old.record)), 1.0)
    assert heard_news(anna)
    assert of(anna, BERT, 1.0) == new.lease
    anna.hear(CLEO.peer_id, Leases((new.record, old.record)), 5.0)
    assert not heard_news(anna), "a replay is no sign of life"
    assert of(anna, BERT, 1.0 + LEASE_SECONDS + 0.1) is None


@pytest.mark.parametrize(
    "ignored",
    [
        sign(STRANGER, a_lease(STRANGER.peer_id), UNIX + 8),
        sign(ANNA, a_lease(FOUNDER, serial=99), UNIX + 8),
        sign(BERT, a_lease(BERT.peer_id), UNIX + 8, run="another"),
        sign(BERT, a_lease(BERT.peer_id), UNIX - 1),
        sign(BERT, a_lease(BERT.peer_id), UNIX + 3600),
    ],
    ids=["stranger", "ours", "other-run", "expired", "far-ahead"],
)
def test_what_is_no_lease_of_a_living_mate_is_ignored(anna: Member, ignored: SignedLease) -> None:
    assert anna.hear(CLEO.peer_id, Leases((ignored.record,)), 0.0) is None
    assert not heard_news(anna)
    assert anna.exchange.merged({}, 0.0) == {}


def test_a_forged_record_is_an_offence_of_its_sender(anna: Member) -> None:
    theirs = sign(BERT, a_lease(BERT.peer_id), UNIX + 8).record
    for record, reason in (
        (signed(LEASE_DOMAIN, b"forged", CLEO), Reason.MALFORMED),
        (theirs[:-1] + bytes([theirs[-1] ^ 1]), Reason.BAD_SIGNATURE),
    ):
        assert refusal(anna.hear, CLEO.peer_id, Leases((record,)), 0.0) is reason


def test_strangers_and_floods_are_not_listened_to(anna: Member) -> None:
    asks = Leases(wanted=(short_name(BERT.peer_id),))
    record = sign(BERT, a_lease(BERT.peer_id), UNIX + 8).record
    assert anna.hear(STRANGER.peer_id, Leases((record,)), 0.0) is None
    assert not heard_news(anna)
    anna.hear(BERT.peer_id, Leases((record,)), 0.0)
    answers = [anna.hear(CLEO.peer_id, asks, 0.0) for _ in range(3 * int(MESSAGES_AT_ONCE))]
    assert [each for each in answers if each] == [Leases((record,))] * int(MESSAGES_AT_ONCE)
    assert anna.hear(BERT.peer_id, asks, 0.0), "others are heard as before"


def test_peers_are_heard_while_they_send_newer_leases_themselves(anna: Member) -> None:
    both = [BERT.peer_id, CLEO.peer_id, ANNA.peer_id]
    for sender in (BERT, CLEO):
        assert not anna.exchange.hears(both, 1.0)
        other = Member(sender, head_of(ANNA, BERT, CLEO))
        anna.hear(sender.peer_id, Leases((other.publish(1.0).record,)), 1.0)
    assert anna.exchange.hears(both, 1.0 + HEARD_S)
    assert not anna.exchange.hears([*both, STRANGER.peer_id], 1.0)
    assert not anna.exchange.hears([ANNA.peer_id], 1.0), "nobody would bring news"
    anna.hear(CLEO.peer_id, Leases(), 1.0 + HEARD_S)
    assert not anna.exchange.hears(both, 1.1 + HEARD_S)


def test_a_peer_reads_the_dht_before_silence_counts() -> None:
    assert RARELY_S < GAP_SECONDS
    assert HEARD_S + RARELY_S < LEASE_SECONDS


def test_our_lease_is_sent_when_it_changed_and_digests_every_two_seconds(anna: Member) -> None:
    assert anna.exchange.due(0.0) == {}, "nothing is published yet"
    theirs = sign(BERT, a_lease(BERT.peer_id), UNIX + 8)
    anna.hear(BERT.peer_id, Leases((theirs.record,)), 0.0)
    first = anna.publish(0.0)
    messages = anna.exchange.due(0.0)
    assert set(messages) == {BERT.peer_id, CLEO.peer_id}
    message = messages[BERT.peer_id]
    assert messages[CLEO.peer_id] == message
    assert (message.records, len(message.held)) == ((first.record,), 1)
    assert anna.exchange.due(0.5) == {}, "nothing has changed"
    second = anna.publish(0.5)
    assert anna.exchange.due(0.5) == {BERT.peer_id: Leases((second.record,))}
    assert anna.exchange.due(2.0)[BERT.peer_id].held == message.held


def test_a_silent_mate_is_tried_seldom_and_one_that_left_never(anna: Member) -> None:
    left = sign(BERT, a_lease(BERT.peer_id, state=PeerState.LEFT), UNIX + 8)
    anna.hear(BERT.peer_id, Leases((left.record,)), 0.0)
    tried = list[float]()
    for tick in range(int(3 * SILENT_S / TICK_S)):
        anna.publish(tick * TICK_S)
        receivers = anna.exchange.due(tick * TICK_S)
        assert BERT.peer_id not in receivers
        tried += [tick * TICK_S] * (CLEO.peer_id in receivers)
    assert tried == pytest.approx([0.0, SILENT_S, 2 * SILENT_S])


def test_a_newcomer_that_no_head_names_says_nothing() -> None:
    newcomer = Member(STRANGER, head_of(ANNA, BERT))
    newcomer.publish(0.0)
    assert newcomer.exchange.due(0.0) == {}


def test_mates_are_remembered_for_a_while_and_few(anna: Member) -> None:
    record = sign(BERT, a_lease(BERT.peer_id), UNIX + 8 + REMEMBERED_S).record
    anna.exchange.know(head_of(ANNA, CLEO), REMEMBERED_S - 1)
    anna.hear(BERT.peer_id, Leases((record,)), REMEMBERED_S - 1)
    assert of(anna, BERT, REMEMBERED_S - 1), "it was named ten minutes ago"
    anna.exchange.know(head_of(ANNA, CLEO), REMEMBERED_S + 1)
    assert of(anna, BERT, REMEMBERED_S + 1) is None
    crowd = head_of(*(Identity.create() for _ in range(2 * MAX_MATES)))
    anna.exchange.know(crowd, REMEMBERED_S + 1)
    anna.publish(REMEMBERED_S + 1)
    receivers = anna.exchange.due(REMEMBERED_S + 1)
    assert len(receivers) == MAX_MATES - 1
    assert FOUNDER not in receivers


def test_two_peers_that_cannot_talk_hear_of_each_other_through_a_third() -> None:
    head = head_of(ANNA, BERT, CLEO)
    anna, bert, cleo = members = [Member(each, head) for each in (ANNA, BERT, CLEO)]
    died_at = 40.0
    for tick in range(300):
        now = tick * TICK_S
        living = members if now < died_at else [bert, cleo]
        for sender in living:
            if tick % 3 == 0:
                sender.publish(now)
            due = sender.exchange.due(now)
            for receiver in living:
                if receiver.peer_id in due and {sender, receiver} != {anna, bert}:
                    deliver(sender, receiver, due[receiver.peer_id], now)
        fresh = [member.look(now) for member in living]
        if 6.0 < now < died_at:
            assert [len(each) for each in fresh] == [2, 2, 2], f"at {now:.1f} s"
        if now > died_at + 2 * LEASE_SECONDS:
            assert fresh == [{CLEO.peer_id}, {BERT.peer_id}], "no peer keeps the dead alive"


def test_a_liar_keeps_no_dead_peer_alive(anna: Member) -> None:
    """The liar has kept all records that the dead peer signed, and promises newer ones."""
    died_at = 10.0
    kept = [sign(BERT, a_lease(BERT.peer_id, serial=n), UNIX + n / 10 + 8) for n in range(100)]
    promise = DIGEST.pack(short_name(BERT.peer_id), float("inf"))
    fresh_at = list[float]()
    for second in range(60):
        now = died_at + second
        told = next((each for each in kept if UNIX + now < each.expires_at), kept[-1])
        anna.hear(CLEO.peer_id, Leases((told.record,), (promise,)), now)
        fresh_at += [now] * (BERT.peer_id in anna.look(now))
    assert fresh_at, "its records were good while they lasted"
    assert max(fresh_at) <= died_at + 2 * LEASE_SECONDS


def test_a_reading_of_the_dht_is_passed_to_mates_that_lack_it(anna: Member) -> None:
    cleo = Member(CLEO, head_of(ANNA, BERT, CLEO))
    theirs = sign(BERT, a_lease(BERT.peer_id), UNIX + 8)
    stranger = sign(STRANGER, a_lease(STRANGER.peer_id), UNIX + 8)
    read = {each.record: each.lease for each in (theirs, stranger)}
    anna.exchange.read(read, 0.0, UNIX)
    anna.publish(0.0)
    deliver(anna, cleo, anna.exchange.due(0.0)[CLEO.peer_id], 0.0)
    assert of(cleo, BERT, 0.0) == theirs.lease
    assert of(cleo, STRANGER, 0.0) is None
    assert anna.exchange.merged({STRANGER.peer_id: stranger.lease}, 0.0).keys() == {
        FOUNDER, BERT.peer_id, STRANGER.peer_id
    }  # fmt: skip


def test_one_of_64_peers_sends_its_lease_within_the_bandwidth() -> None:
    """It renews its lease at each tick: without a bound it would send 160 kB/s."""
    mates = [Identity.create() for _ in range(63)]
    anna, seconds, sent = Member(ANNA, head_of(ANNA, *mates)), 8, 0
    for tick in range(int(seconds / TICK_S)):
        now = tick * TICK_S
        for mate in mates if tick % 5 == 0 else []:
            theirs = sign(mate, a_lease(mate.peer_id), UNIX + now + LEASE_SECONDS)
            anna.hear(mate.peer_id, Leases((theirs.record,)), now)
        anna.publish(now)
        sent += sum(len(encode(message)) for message in anna.exchange.due(now).values())
    assert 65e3 < sent / seconds < 80e3


def test_a_message_at_its_bounds_is_small_and_one_beyond_is_refused() -> None:
    record, name, digest = bytes(4096), bytes(8), bytes(16)
    full = Leases(
        (record,) * MAX_RECORDS, (digest,) * 96, (name,) * MAX_RECORDS, (name,) * MAX_RECORDS
    )
    assert len(encode(full)) < 72 * 1024
    assert decode(encode(full)) == full
    for field, beyond in (
        ("records", (bytes(4097),)),
        ("records", (record,) * (MAX_RECORDS + 1)),
        ("held", (bytes(17),)),
        ("held", (digest,) * 97),
        ("wanted", (bytes(7),)),
        ("neighbours", (bytes(9),)),
        ("neighbours", (name,) * (MAX_RECORDS + 1)),
    ):
        assert refusal(decode, encode(replace(full, **{field: beyond})))


# ---- neighbours in our own network: two witnesses with tenure see them at our public address

HOME, ELSEWHERE = "203.0.113.7", "2001:db8:1:2::/64"


def tenured(tenured: Sequence[str], members: Sequence[str]) -> Head:
    first = genesis(b"m" * 32, b"s" * 32, Voter("us", bytes(16)))
    return replace(first, members=(*members,), tenures=from_the_start(tenured))


@pytest.fixture
def ours() -> LeaseExchange:
    """Our exchange. W1 and w2 have tenure, new1 and new2 are members without tenure."""
    exchange = LeaseExchange("us", PLACE)
    exchange.know(tenured(["us", "w1", "w2"], ["us", "w1", "w2", "new1", "new2", "near"]), 0.0)
    return exchange


def says(exchange: LeaseExchange, witness: str, *names: str, now: float = 0.0) -> None:
    message = Leases(neighbours=tuple(map(short_name, names)))
    assert exchange.hear(witness, message, now, UNIX + now) is None


def test_two_witnesses_make_a_neighbour_for_the_time_of_a_lease(ours: LeaseExchange) -> None:
    says(ours, "w1", "near")
    assert ours.neighbours(0.0) == set()
    says(ours, "w2", "near", now=1.0)
    assert ours.neighbours(1.0) == {"near"}
    assert ours.neighbours(LEASE_SECONDS) == {"near"}
    assert ours.neighbours(LEASE_SECONDS + 0.1) == set(), "the first witness said it too long ago"


@pytest.mark.parametrize(
    "claims",
    [
        [("w1", "near"), ("w1", "near")],
        [("new1", "near"), ("new2", "near")],
        [("w1", "near"), ("new1", "near")],
        [("w1", "w2"), ("w2", "w2")],
        [("w1", "near"), ("w2", "near"), ("w2", "new1")],
        [("w1", "stranger"), ("w2", "stranger")],
        [("stranger", "near"), ("us", "near"), ("w1", "near")],
        [("w1", "us"), ("w2", "us")],
    ],
    ids=["one-twice", "no-tenure", "one-of-two", "of-itself", "taken-back", "unknown-peer",
         "unknown-witness", "ourselves"],
)  # fmt: skip
def test_other_claims_change_nothing(ours: LeaseExchange, claims: list[tuple[str, str]]) -> None:
    for witness, name in claims:
        says(ours, witness, name)
    assert ours.neighbours(0.0) == set()


def test_a_witness_that_lost_its_tenure_does_not_count(ours: LeaseExchange) -> None:
    says(ours, "w1", "near")
    says(ours, "w2", "near")
    assert ours.neighbours(0.0) == {"near"}
    ours.know(tenured(["us", "w1"], ["us", "w1", "w2", "near"]), 0.0)
    assert ours.neighbours(0.0) == set()


def test_each_mate_is_sent_the_names_of_the_mates_at_its_own_public_host() -> None:
    hosts = {"one": HOME, "two": HOME, "far": ELSEWHERE, "stranger": HOME}
    witness = LeaseExchange("us", PLACE, lambda: hosts)
    witness.know(tenured([], ["us", "one", "two", "far", "hidden"]), 0.0)
    witness.publish(SignedLease(b"record", a_lease("us"), UNIX + LEASE_SECONDS))
    sent = {peer_id: message.neighbours for peer_id, message in witness.due(0.0).items()}
    one, two = short_name("one"), short_name("two")
    assert sent == {"one": (two,), "two": (one,), "far": (), "hidden": ()}


def test_of_a_crowd_at_one_host_few_are_named() -> None:
    crowd = {f"peer{number}": HOME for number in range(2 * MAX_RECORDS)}
    assert len(neighbour_names("peer0", crowd)) == MAX_RECORDS
