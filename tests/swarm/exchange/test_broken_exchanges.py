"""Exchanges that break under way: every honest member names the same one, or the same reason."""

import math
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atom.base.errors import Reason
from atom.swarm.exchange.allreduce import Channels
from atom.swarm.exchange.codec import Codec, Float32, Int8
from atom.swarm.exchange.plans import chunk_header
from atom.swarm.exchange.reduction import ExchangeBroken, Reduction, Terms, hear_broken
from atom.swarm.exchange.sparse import CHUNK, Sparse
from atom.swarm.stream.frames import Kind, Pace, Patience, Purpose
from tests.swarm.stream_pairs import HEADER
from tests.swarm.threaded_ring import SILENCE_S, SOON, Make, Swarm, broken, sources, spoilt

CULPRIT, QUIET, KINDS = (
    2,
    {"progress_timeout_s": SILENCE_S},
    [(), (1, 1, 1, 1), (1, 0, 0, 1), (0, 0, 1, 0)],
)
SLOW, FEW = {"pace": Pace(0.8)}, 40_000
Play = Callable[[Channels, threading.Event], object]


def die(channels: Channels, over: threading.Event) -> None:
    if len(channels.left) == 1:  # a ring, under way
        channels.left[0].recv_header(1 << 20, Patience(SOON))


def freeze(channels: Channels, over: threading.Event) -> None:
    over.wait(SOON)


def speak_and_freeze(channels: Channels, over: threading.Event) -> None:
    """Through with opening: its silence afterwards is a frozen member's, however long others may
    take to open."""
    channels.right[0].send_frame(Kind.WAITING, patience=Patience(SOON))
    over.wait(SOON)


def keep_waiting(channels: Channels, over: threading.Event) -> None:
    """ "I wait for another", for ever."""
    while not over.wait(0.05):
        for channel in channels.right:
            channel.send_frame(Kind.WAITING, patience=Patience(SOON))


@pytest.mark.parametrize(
    ("play", "terms", "reason", "shares"),
    [
        *((die, QUIET, Reason.RING_BROKEN, shares) for shares in KINDS),
        *((freeze, QUIET, Reason.TIMEOUT, shares) for shares in KINDS),
        (speak_and_freeze, QUIET | {"opening_s": 100 * SOON}, Reason.TIMEOUT, ()),
        (keep_waiting, SLOW, Reason.TOO_SLOW, ()),
        (keep_waiting, SLOW, Reason.TOO_SLOW, (1, 1, 1, 0)),
    ],
)
def test_who_dies_freezes_or_holds_the_others_up_is_named_by_all(
    swarm_of: Make, play: Play, terms: dict[str, object], reason: Reason, shares: tuple[int, ...]
) -> None:
    """The members of a ring that is too slow cannot know the culprit."""
    swarm = swarm_of(4, shares)
    suspect = None if reason is Reason.TOO_SLOW and not shares else swarm.order[CULPRIT]
    for failure in swarm.broken_by(CULPRIT, play, FEW, **terms).values():
        assert (failure.suspect, failure.reason) == (suspect, reason)


def test_ring_that_gets_a_few_bytes_at_a_time_ends_for_all(swarm_of: Make) -> None:
    """A true chunk: never silent, never done."""
    swarm = swarm_of(4)
    step = next(swarm.terms(CULPRIT).plan(FEW).stream(CULPRIT, 3))
    header = chunk_header(swarm.terms(CULPRIT).tag, step)

    def dribble(channels: Channels, over: threading.Event) -> None:
        length = len(header) + 4 * (step.stop - step.start)
        begun = HEADER.pack(length, Kind.CHUNK) + header
        channels.right[0].stream.send_all(memoryview(begun), Patience(SOON))
        while not over.wait(0.05):
            channels.right[0].stream.send_all(memoryview(bytes(64)), Patience(SOON))

    for failure in swarm.broken_by(CULPRIT, dribble, FEW, **SLOW).values():
        assert (failure.suspect, failure.reason) == (None, Reason.TOO_SLOW)


def test_cancelling_ends_the_ring_for_all(swarm_of: Make) -> None:
    cancelled = threading.Event()

    def stand_still(channels: Channels, over: threading.Event) -> None:
        cancelled.set()
        over.wait(SOON)

    terms = {"cancelled": cancelled, "progress_timeout_s": SOON}
    failures = swarm_of(3).broken_by(2, stand_still, **terms)
    assert {failure.reason for failure in failures.values()} == {Reason.SUPERSEDED}


@pytest.mark.parametrize("shares", [(), (1, 1)])
@pytest.mark.parametrize("field", ["attempt", "hop", "start", "length", "kind"])
def test_a_wrong_header_is_malformed_and_blames_the_sender(
    swarm_of: Make, field: str, shares: tuple[int, ...]
) -> None:
    swarm = swarm_of(2, shares)
    step = next(swarm.terms(1).plan(4096).stream(1, 0))
    header = bytearray(chunk_header(swarm.terms(1).tag, step))
    places = {"attempt": 0, "hop": 10, "start": 18}
    if field in places:
        header[places[field]] ^= 1
    kind = Kind.MESSAGE if field == "kind" else Kind.CHUNK
    size = 4 * (step.stop - step.start) - (4 if field == "length" else 0)

    def send_it(channels: Channels, over: threading.Event) -> None:
        channels.right[0].send_frame(kind, bytes(header), bytes(size), patience=Patience(SOON))
        over.wait(SOON)

    failure = swarm.broken_by(1, send_it, 4096)[0]
    assert (failure.suspect, failure.reason) == (swarm.order[1], Reason.MALFORMED)


# ---- numbers that no exchange may let through


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("shares", [(), (1, 0, 1)])
@pytest.mark.parametrize(
    ("poison", "where"),
    [(float("nan"), 31_000), (float("inf"), 31_000), (1e31, slice(None))],
    ids=["nan", "inf", "absurd"],
)
def test_a_member_with_bad_numbers_is_named_by_all(
    swarm_of: Make, culprit: int, shares: tuple[int, ...], poison: float, where: int
) -> None:
    swarm, parts = swarm_of(3, shares), sources(3, 60_000)
    parts[culprit][where] = poison
    for future in swarm.start(lambda rank: swarm.member(rank, parts[rank])):
        failure = broken(future)
        assert (failure.suspect, failure.reason) == (swarm.order[culprit], Reason.NOT_FINITE)


def test_a_lone_member_refuses_bad_numbers(swarm_of: Make) -> None:
    swarm = swarm_of(1)
    failure = broken(swarm.start(lambda rank: swarm.member(rank, torch.full((64,), math.nan)))[0])
    assert (failure.suspect, failure.reason) == (swarm.order[0], Reason.NOT_FINITE)


def of_ones(wire: Tensor) -> Tensor:
    return wire.fill_(0xFF)


def with_odd_levels(wire: Tensor) -> Tensor:
    return wire.index_fill(0, torch.tensor([2, 3, 4, 5]), 0xFF)


def too_long(wire: Tensor) -> Tensor:
    return torch.cat([wire, torch.zeros(1, dtype=torch.uint8)])


@pytest.mark.parametrize(
    ("codec", "shares", "size", "means", "spoil", "reason"),
    [
        *((codec, (), size, True, of_ones, Reason.NOT_FINITE)
          for codec in (Float32(), Int8()) for size in (2, 3)),
        *((Sparse(), (1, 1, 1), 3, means, *spoilt_so) for means in (False, True)
          for spoilt_so in ((with_odd_levels, Reason.NOT_FINITE), (too_long, Reason.MALFORMED))),
    ],
)  # fmt: skip
def test_who_sends_or_passes_on_what_no_encoder_writes_is_named_by_all(
    swarm_of: Make,
    codec: Codec,
    shares: tuple[int, ...],
    size: int,
    means: bool,
    spoil: Callable[[Tensor], Tensor],
    reason: Reason,
) -> None:
    """A contribution, or a mean."""
    swarm, parts = swarm_of(size, shares), sources(size, 6 * CHUNK if shares else 16 * size)
    with spoilt(1, means, spoil):
        work = swarm.start(lambda rank: swarm.member(rank, parts[rank], codec=codec))
        for future in (*work[:1], *work[2:]):
            failure = broken(future)
            assert (failure.suspect, failure.reason) == (swarm.order[1], reason)


# ---- whose word counts


OURS, ECHO = (
    ExchangeBroken("left", Reason.TIMEOUT),
    ExchangeBroken("left", Reason.TIMEOUT, reported=True),
)
CLOSER = ExchangeBroken("right", Reason.TIMEOUT, reported=True)
AT_US = ExchangeBroken("us", Reason.TIMEOUT, reported=True)


@pytest.mark.parametrize(
    ("heard", "believed"),
    [((OURS, CLOSER), CLOSER), ((OURS, AT_US, CLOSER), AT_US), ((OURS, ECHO), OURS)],
    ids=["the closer witness counts", "the first of those", "an echo is no news"],
)
def test_the_first_word_of_who_saw_it_closest_counts(
    heard: tuple[ExchangeBroken, ...], believed: ExchangeBroken
) -> None:
    """An echo: else both would refer to each other, and one of them would be the culprit."""
    terms = Terms(("us", "right", "left"), 0, b"t" * 32, 1.0)
    reduction = Reduction(terms, None, terms.mean_wires(256))
    for failure in heard:
        reduction.fail(failure)
    assert reduction.failure is believed


# ---- the connections of an exchange: all of them, or none, and one is named


def not_opened(swarm: Swarm) -> tuple[str | None, Reason]:
    """Return the suspect and reason with which the first member fails to open its connections."""
    with pytest.raises(ExchangeBroken) as failure:
        swarm.open(0, 0.5)
    return failure.value.suspect, failure.value.reason


@pytest.mark.parametrize("shares", [(), (1, 1, 1), (0, 1, 0)])
def test_an_absent_neighbour_is_named(swarm_of: Make, shares: tuple[int, ...]) -> None:
    swarm = swarm_of(3, shares)
    if not shares:
        assert not_opened(swarm) == (swarm.order[2], Reason.TIMEOUT)
    swarm.transports[1].close()
    assert not_opened(swarm) == (swarm.order[1], Reason.RING_BROKEN)


@pytest.mark.parametrize("trouble", ["late", "unreachable"])
def test_an_exchange_that_cannot_be_opened_leaves_no_connection_and_says_who_is_missing(
    swarm_of: Make, trouble: str
) -> None:
    swarm = swarm_of(3, (1, 1, 1))
    here, there, missing = swarm.transports
    tag = swarm.terms(0).tag + bytes([1])
    arrived = there.connect(here.peer_id, Purpose.RING, tag)
    if trouble == "unreachable":
        here.set_addresses(missing.peer_id, [])
    with pytest.raises(ExchangeBroken):
        swarm.open(0, 0.5)
    reported = [there.accept_ring(here.peer_id, tag, SOON)]
    reported += [arrived] if trouble == "late" else []  # else no member has claimed it yet
    for channel in reported:
        assert hear_broken(channel, swarm.order).suspect == missing.peer_id
        with pytest.raises(ConnectionError):
            channel.recv_header(0, Patience(SOON))
