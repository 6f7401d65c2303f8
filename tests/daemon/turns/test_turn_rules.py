"""Whose turn it is, over thousands of turns of a clock that the test moves."""

import itertools
import random
from dataclasses import dataclass, field

import pytest

from atom.daemon.turns.board import Board, Claim, Wish
from atom.daemon.turns.rules import (
    AWAKE_S,
    FROZEN_S,
    Standing,
    is_frozen,
    left,
    looked,
    slot_s,
    standing,
)
from atom.daemon.turns.shown import shown_runs

SLOT_S = 60.0


@dataclass
class Member:
    """A daemon as the rules see it: it gives the device back with its rounds, if it is asked."""

    name: str
    run: str
    share: float = 1.0
    round_s: float = 10.0
    slot_s: float = SLOT_S
    wish: Wish = Wish.TRAINING
    holds: bool = False
    alive: bool = True
    frozen: bool = False
    had_s: float = 0.0
    """Of its run."""
    turns: list[tuple[float, float]] = field(default_factory=list)
    round_ends_s: float = 0.0


class Box:
    """Members that look in turn, half a second of the clock apart unless a test says otherwise."""

    def __init__(self, *members: Member, look_s: float = 0.5) -> None:
        self.members, self.board = list(members), Board()
        self.now, self.look_s = 1000.0, look_s

    def run_for(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += self.look_s
            for member in self.members:
                if member.alive and not member.frozen:
                    self.look(member)
            busy = {each.run for each in self.members if each.holds and not each.frozen}
            assert len(busy) <= 1, "two runs on one device"
            for member in self.members:
                member.had_s += self.look_s * (member.run in busy)

    def look(self, member: Member) -> Standing:
        held = member.holds
        round_ended = held and self.now >= member.round_ends_s
        if round_ended:
            member.round_ends_s = self.now + member.round_s
        self._post(member)
        verdict = standing(self.board, member.name, self.now, round_ended)
        if verdict is Standing.MAY and not member.holds:
            member.holds, member.round_ends_s = True, self.now + member.round_s
            member.turns.append((self.now, self.now))
        if verdict is Standing.YIELDS:
            member.holds = False
            member.turns[-1] = (member.turns[-1][0], self.now)
        if member.holds != held:
            self._post(member)
        return verdict

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        self.board = left(self.board, member.name, self.now)

    def _post(self, member: Member) -> None:
        claim = Claim(
            member.run,
            member.name,
            member.share,
            member.slot_s,
            member.wish,
            self.now,
            member.holds,
        )
        alive = [each.name for each in self.members if each.alive]
        self.board = looked(self.board, member.name, claim, alive, self.now)


def test_who_is_alone_notices_nothing() -> None:
    alone = Member("a", "one")
    box = Box(alone)
    assert box.look(alone) is Standing.MAY, "with the first look"
    for wish in (Wish.TRAINING, Wish.NOTHING, Wish.TRAINING, Wish.LEAVING):
        alone.wish = wish
        box.run_for(10 * SLOT_S)
        assert alone.holds
    assert len(alone.turns) == 1
    assert shown_runs(box.board, box.now)[0]["left_s"] is None


def test_two_alternate_and_get_what_their_shares_say() -> None:
    one, two = Member("a", "one"), Member("b", "two", share=2.0)
    box = Box(one, two, look_s=4.0)
    box.run_for(200 * SLOT_S)
    assert two.had_s / one.had_s == pytest.approx(2.0, rel=0.05)
    starts = sorted([(at, m.name) for m in (one, two) for at, _ in m.turns])
    assert len(starts) > 90
    assert all(a[1] != b[1] for a, b in itertools.pairwise(starts)), "they alternate"
    lengths = [end - at for at, end in two.turns[2:-1]]
    assert max(lengths) <= SLOT_S * 2 * 2 / 3 + two.round_s + 2 * box.look_s
    told = {row["run"]: row["last_hour_s"] for row in shown_runs(box.board, box.now)}
    assert told["two"] / told["one"] == pytest.approx(2.0, rel=0.1)
    assert told["two"] + told["one"] == pytest.approx(3600.0, abs=300.0), "switches take a look"


@pytest.mark.parametrize("seed", range(10))
def test_device_time_goes_by_shares_and_nobody_starves(seed: int) -> None:
    """Also where rounds outlast slots, daemons look seldom, and several daemons train one run."""
    chance = random.Random(seed)
    count = chance.randint(2, 5)
    members = [
        Member(f"m{n}", f"run{n}", chance.choice([0.5, 1, 2, 3]), chance.uniform(1, 4 * SLOT_S))
        for n in range(count)
    ]
    if chance.random() < 0.3:
        members.append(Member("twin", "run0", members[0].share, members[0].round_s))
    box = Box(*members, look_s=10.0)
    box.run_for(20 * count * SLOT_S)
    by_share = [m.had_s / m.share for m in members[:count]]
    longest = max(slot_s(box.board, m.run) + SLOT_S + 20.0 for m in members)
    assert max(by_share) - min(by_share) <= 2 * longest / min(m.share for m in members)
    for member in members[:count]:
        ends = [1000.0] + [end for _, end in member.turns]
        waits = [at - end for (at, _), end in zip(member.turns, ends, strict=False)]
        assert max(waits) <= 4 * (count + 1) * longest, "nobody starves"


def test_who_does_not_want_it_is_passed_over_and_saves_up_one_slot_at_most() -> None:
    one, two = Member("a", "one"), Member("b", "two")
    box = Box(one, two, look_s=4.0)
    box.run_for(10 * SLOT_S)
    two.wish = Wish.NOTHING
    box.run_for(30 * SLOT_S)
    assert one.holds
    assert not two.holds
    before = one.had_s, two.had_s
    two.wish = Wish.TRAINING
    box.run_for(20 * SLOT_S)
    ahead = (two.had_s - before[1]) - (one.had_s - before[0])
    assert 0 <= ahead <= 3 * SLOT_S


def test_with_nothing_to_compute_it_goes_on_at_once_and_comes_back() -> None:
    one, two = Member("a", "one", round_s=1e9), Member("b", "two", round_s=1e9)
    box = Box(one, two)
    box.run_for(5.0)
    assert one.holds
    one.wish = Wish.NOTHING
    box.run_for(2.0)
    assert two.holds
    one.wish = Wish.TRAINING
    box.run_for(3 * SLOT_S)
    assert len(one.turns) == 2


def test_a_round_that_does_not_come_ends_no_later_than_a_slot_after_its_own() -> None:
    stuck, other = Member("a", "one", round_s=1e9), Member("b", "two")
    box = Box(stuck, other, look_s=4.0)
    box.run_for(100 * SLOT_S)
    lengths = [end - at for at, end in stuck.turns[:-1]]
    assert max(lengths) <= 2 * SLOT_S + 2 * box.look_s
    assert other.had_s / stuck.had_s == pytest.approx(1.0, rel=0.1), "it is charged for that"


def test_the_shortest_slot_holds_for_all() -> None:
    patient = Member("a", "one", round_s=1e9, slot_s=100 * SLOT_S)
    hasty = Member("b", "two", slot_s=10.0)
    box = Box(patient, hasty)
    box.run_for(300.0)
    assert max(end - at for at, end in patient.turns[:-1]) <= 20.0 + 2 * box.look_s
    assert len(hasty.turns) >= 6


def test_the_device_of_the_dead_is_free_at_once() -> None:
    one, two = Member("a", "one"), Member("b", "two")
    box = Box(one, two)
    box.run_for(5.0)
    assert one.holds
    one.alive = one.holds = False
    box.run_for(1.0)
    assert two.holds
    assert list(box.board.claims) == ["b"]


def test_whoever_stands_still_keeps_nobody_waiting_and_steps_back_when_it_goes_on() -> None:
    one, two = Member("a", "one"), Member("b", "two")
    box = Box(one, two)
    box.run_for(5.0)
    one.frozen = True
    box.run_for(FROZEN_S - 1)
    assert not two.holds
    box.run_for(3.0)
    assert two.holds
    box.run_for(10 * SLOT_S)
    assert len(two.turns) == 1
    rows = {row["run"]: row["turn"] for row in shown_runs(box.board, box.now)}
    assert rows == {"one": "frozen", "two": "has the device"}
    one.frozen = False
    assert box.look(one) is Standing.YIELDS
    box.run_for(10 * SLOT_S)
    assert len(one.turns) > 2


def test_after_a_sleep_of_the_machine_nobody_is_taken_for_frozen() -> None:
    one, two = Member("a", "one"), Member("b", "two")
    box = Box(one, two)
    box.run_for(5.0)
    box.now += 8 * 3600.0
    assert box.look(two) is Standing.WAITS
    assert box.board.claims["a"].holds, "it had no time to look"
    box.run_for(AWAKE_S)
    assert not any(is_frozen(claim, box.now) for claim in box.board.claims.values())


def test_a_newcomer_is_set_up_after_the_round_and_not_interrupted() -> None:
    one = Member("a", "one", round_s=20.0)
    box = Box(one)
    box.run_for(100.0)
    new = Member("b", "two", wish=Wish.SET_UP, round_s=1e9)
    box.members.append(new)
    box.run_for(one.round_s + 2)
    assert new.holds
    box.run_for(4 * SLOT_S)
    assert new.holds
    new.wish = Wish.TRAINING
    box.run_for(2.0)
    assert one.holds, "its set-up was longer than its slot"


@pytest.mark.parametrize(("set_up_s", "away_s"), [(10.0, 1.0), (100.0, 1.0), (100.0, 30.0)])
def test_whoever_is_set_up_again_and_again_takes_no_more_than_its_share(
    set_up_s: float, away_s: float
) -> None:
    one, again = Member("a", "one"), Member("b", "two", wish=Wish.SET_UP)
    box = Box(one, again)
    for _ in range(100):
        box.run_for(10.0)
        if again.holds:  # it ends, and is started once more
            box.run_for(set_up_s - 10.0)
            again.alive = again.holds = False
            box.run_for(away_s)
            again.alive = True
    assert len(again.turns) > 3
    assert again.had_s <= 1.1 * one.had_s + set_up_s
    box.leave(again)
    box.run_for(set_up_s + 2 * SLOT_S)
    assert list(box.board.accounts) == ["one"], "it is forgotten in the end"


def test_whoever_leaves_with_counted_work_gets_the_device_at_once() -> None:
    one, two = Member("a", "one", round_s=1e9), Member("b", "two", round_s=1e9)
    box = Box(one, two)
    box.run_for(5.0)
    two.wish = Wish.LEAVING
    box.run_for(1.0)
    assert two.holds
    box.run_for(3 * SLOT_S)
    assert two.holds
    box.leave(two)
    box.run_for(1.0)
    assert one.holds


def test_a_turn_that_is_not_taken_up_passes_on() -> None:
    one, two = Member("a", "one"), Member("b", "two")
    box = Box(one, two)
    box.run_for(5.0)
    two.wish = Wish.TRAINING
    one.wish, two.frozen = Wish.NOTHING, True
    box.run_for(1.0)
    one.wish = Wish.TRAINING
    box.run_for(SLOT_S)
    assert one.holds
