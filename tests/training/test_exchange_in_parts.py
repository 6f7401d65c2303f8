"""Exchanges of peers that each hold some of the optimizer's state, as a round asks for them."""

import queue
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atom.base.clock import BootClock
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Ballot, MemberCount, PartHolder
from atom.swarm.exchange.allreduce import ExchangeBroken, Sums
from atom.swarm.exchange.codec import codec_named
from atom.swarm.exchange.encoded import EncodedMean
from atom.training import exchange
from atom.training.exchange import Exchange, holding_of
from atom.training.replica.parts_step import PartsStep
from atom.training.round.events import Event, ExchangeFailed, ExchangeFinished, StartExchange
from atom.training.round.holders import mask_of
from atom.training.storage.parts_results import PartsResults
from tests.swarm.threaded_ring import SOON, sources
from tests.training.parts_room import ADAMW, LAYOUT, Room, terms_of

CODEC = codec_named("bfloat16")


class Member:
    def __init__(self, room: Room, rank: int, given: Tensor, folder: Path) -> None:
        self.kept: list[Mapping[bytes, EncodedMean]] = []
        self.outcomes: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._store = room.stores[rank]
        held = self._store.held
        assert held is not None
        self.results = PartsResults(folder, held, CODEC, lambda part: torch.empty(0))
        self.exchange = Exchange(
            room.swarm.transports[rank],
            self.results,
            lambda parent: Sums(given),
            self.outcomes.put,
            BootClock(),
            self._step,
        )
        self.fault: Exception | None = None

    def _step(self) -> PartsStep:
        work = PartsStep(ADAMW, self._store, CODEC, partial(terms_of, 1), self.kept.append)
        if self.fault is not None:
            work.make = self._fail  # type: ignore[method-assign]
        return work

    def _fail(self, part: int, mean: EncodedMean, whole: bool) -> tuple[Tensor, bytes]:
        assert self.fault is not None
        raise self.fault


@pytest.fixture
def members(room: Room, tmp_path: Path) -> Iterator[list[Member]]:
    given = sources(3, LAYOUT.trained_elements)
    made = [Member(room, rank, given[rank], tmp_path / str(rank)) for rank in range(3)]
    yield made
    for member in made:
        member.exchange.stop()


def asked(room: Room, anew: int = 0, told: tuple[PartHolder, ...] = ()) -> StartExchange:
    """`anew`: parts that everybody is to have, of nothing."""
    holds = [store.held.held for store in room.stores if store.held is not None]
    pairs = zip(room.swarm.order, holds, strict=True)
    counts = tuple(
        MemberCount(peer, bytes(16), 4, 1.0, mask_of(held) | anew) for peer, held in pairs
    )
    ballot = Ballot(1, room.swarm.order[0], bytes(16))
    return StartExchange(b"p" * 32, ballot, counts, told=told)


def ended(members: list[Member], start: StartExchange) -> list[Event]:
    for member in members:
        member.exchange.start(start)
    return [member.outcomes.get(timeout=SOON) for member in members]


def test_all_end_with_one_name_of_the_next_state(room: Room, members: list[Member]) -> None:
    first, *others = ended(members, asked(room))
    assert isinstance(first, ExchangeFinished)
    assert others == [first, first]
    for member, store in zip(members, room.stores, strict=True):
        result, held = member.results.of(first.digest), store.held
        assert held is not None
        assert (result.digest, result.lacking(held.held)) == (first.digest, {})
        assert len(member.exchange.speeds.links(3)) == 2, "the next is held to the pace of this one"
    assert all(map(room.has_the_bits, room.stores))


def test_who_shall_hold_a_part_gets_all_of_it(room: Room, members: list[Member]) -> None:
    room.stores[1].held.drop(0)  # type: ignore[union-attr]
    told = (PartHolder(room.swarm.order[1], 1), PartHolder("a stranger", 1))
    finished = ended(members, asked(room, told=told))[1]
    assert isinstance(finished, ExchangeFinished)
    result = members[1].results.of(finished.digest)
    assert 0 in result.held
    assert 0 in result.loaded


def test_few_parts_are_given_at_a_time_those_that_fewest_have_first(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gives them and who gets them have them in memory beside their own state."""
    monkeypatch.setattr(exchange, "MOST_GIVEN", 2)
    everything, start = set(range(8)), asked(room)
    has, shall = [everything, everything - {6, 7}, {0}], [set[int](), {6, 7}, {0, 1, 2, 3}]
    members = start.members
    told = tuple(PartHolder(m.peer_id, mask_of(s)) for m, s in zip(members, shall, strict=True))
    ranges, given = tuple((n, n + 1) for n in everything), list[set[int]]()
    for _ in range(4):
        pairs = zip(members, has, strict=True)
        counts = tuple(replace(member, holds=mask_of(held)) for member, held in pairs)
        call = StartExchange(start.parent, start.ballot, counts, told=told)
        gets = holding_of(call, ranges).gets
        given.append(set().union(*gets))
        has = [held | got for held, got in zip(has, gets, strict=True)]
    assert given == [{6, 7}, {1, 2}, {3}, set()]
    assert has[1:] == [everything, {0, 1, 2, 3}]


def test_what_began_anew_is_the_same_everywhere(room: Room, members: list[Member]) -> None:
    """Whoever owns it."""
    for store in room.stores:
        store.held.drop(2) if 2 in store.held.held else None  # type: ignore[union-attr]
    first, *others = ended(members, asked(room, anew=1 << 2))
    assert isinstance(first, ExchangeFinished)
    assert others == [first, first]
    results = [member.results.of(first.digest) for member in members]
    assert sum(2 in result.loaded for result in results) == 1, "the owner's"
    assert all(2 in result.means for result in results)
    low = room.stores[0].renewed(2)
    assert not any(arena.any() for arena in low.values())


def test_means_of_a_broken_exchange_are_kept(room: Room, members: list[Member]) -> None:
    members[1].fault = MemoryError("no room")
    outcomes = ended(members, asked(room))
    assert all(isinstance(each, ExchangeFailed) for each in outcomes)
    for member, store in zip(members, room.stores, strict=True):
        [kept], held = member.kept, store.held
        assert held is not None
        assert len(kept) == len(held.held)
    assert all(isinstance(each, ExchangeFailed) for each in outcomes)


@pytest.mark.parametrize("holds", [0, (1 << 60) - 1])
def test_a_call_that_no_coordinator_makes_is_refused(room: Room, holds: int) -> None:
    """Nobody holds a part; somebody holds one that there is not."""
    start = asked(room)
    counts = tuple(MemberCount(m.peer_id, m.incarnation, 4, 1.0, holds) for m in start.members)
    with pytest.raises(ExchangeBroken) as broken:
        holding_of(StartExchange(start.parent, start.ballot, counts), room.ranges)
    assert broken.value.reason is Reason.NO_HOLDER
