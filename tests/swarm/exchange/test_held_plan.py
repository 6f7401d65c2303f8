"""The plan alone: whoever holds a part has its mean before anything is made, and nothing waits for
ever."""

import itertools
import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from atom.swarm.exchange.held_plan import MADE, ROW, SUMS, HeldPlan, Holding, owners_of
from atom.swarm.exchange.plans import ALIGNMENT, WINDOW, Step


@st.composite
def holdings(draw: st.DrawFn) -> Holding:
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    edges = [ALIGNMENT * sum(sizes[:n]) for n in range(len(sizes) + 1)]
    ranges = tuple(itertools.pairwise(edges))
    some = st.frozensets(st.integers(0, len(sizes) - 1))
    holds = draw(st.lists(some, min_size=1, max_size=5))
    holds[0] = frozenset(range(len(sizes))) - frozenset.union(frozenset(), *holds[1:]) | holds[0]
    owners = owners_of(holds, ranges)
    assert owners is not None
    gets = tuple(draw(some) - held for held in holds)
    return Holding(ranges, owners, tuple(holds), gets)


PLANS = st.builds(
    lambda holding, bucket, chunk: HeldPlan(
        holding.ranges[-1][1], holding.shares, bucket * ALIGNMENT, chunk * ALIGNMENT, holding
    ),
    holdings(),
    st.integers(1, 12),
    st.integers(1, 3),
)


def chunks(plan: HeldPlan) -> Iterator[tuple[int, int, int, int]]:
    for bucket in range(plan.buckets):
        for owner in range(plan.members):
            for chunk in plan.chunks(bucket, owner):
                yield owner, *chunk


@given(PLANS)
@settings(max_examples=100, deadline=None)
def test_every_element_is_its_owners_once(plan: HeldPlan) -> None:
    holding, covered, numbers = plan.holding, list[int](), set[int]()
    for owner, number, start, stop in chunks(plan):
        part = holding.part_of(start)
        assert holding.owners[part] == owner
        assert holding.part_of(stop - 1) == part
        assert part in holding.holds[owner]
        covered += range(start, stop)
        numbers.add(number)
    assert sorted(covered) == list(range(plan.elements))
    assert len(numbers) == len(list(chunks(plan)))
    assert max(numbers) < plan.through(0)
    assert plan.through(plan.members - 1) < plan.made(0)


class Members:
    """Runs all in any order of events, as their threads would."""

    def __init__(self, plan: HeldPlan, dice: random.Random) -> None:
        self.plan, self.dice, ranks = plan, dice, range(plan.members)
        self.streams = {
            (rank, peer): list(plan.stream(rank, peer))
            for rank in ranks
            for peer in plan.peers(rank)
        }
        self.there: list[set[int]] = [set() for _ in ranks]
        self.contributed: list[dict[int, int]] = [{} for _ in ranks]
        self.means: list[set[int]] = [set() for _ in ranks]
        """Chunks of means that each has."""
        self.made: list[set[int]] = [set() for _ in ranks]
        self.rows: list[set[int]] = [set() for _ in ranks]
        for rank in ranks:
            self._go_on(rank)

    def run(self) -> None:
        while any(self.streams.values()):
            able = [way for way, steps in self.streams.items() if self._able(way[0], steps)]
            sender, receiver = self.dice.choice(able)  # fails if all wait for each other
            self._take(sender, receiver, self.streams[sender, receiver].pop(0))
            self._go_on(receiver)

    def _able(self, sender: int, steps: list[Step]) -> bool:
        return bool(steps) and steps[0].needs in {None, *self.there[sender]}

    def _take(self, sender: int, receiver: int, step: Step) -> None:
        part = self.plan.holding.part_of(step.start)
        if step.hop == MADE:
            assert part not in self.plan.holding.holds[receiver]
            assert self._all_have_their_means()
            self.made[receiver].update(range(step.start, step.stop))
        elif step.hop == ROW:
            self.rows[receiver].add(part)
        elif step.gather:
            self.there[receiver].add(step.number)
            if not step.hop and part in self.plan.holding.holds[receiver]:
                self.means[receiver].add(step.start)
        else:
            assert self.plan.slot(step.number) < WINDOW * self.plan.owned_chunks
            count = self.contributed[receiver]
            count[step.number] = count.get(step.number, 0) + 1
            if count[step.number] == len(self.plan.peers(receiver)):
                self.there[receiver].add(step.number)
                self.means[receiver].add(step.start)

    def _go_on(self, rank: int) -> None:
        """What its maker does."""
        plan, peers = self.plan, self.plan.peers(rank)
        if all(not left or left[0].hop for peer in peers for left in [self.streams[peer, rank]]):
            self.there[rank].add(plan.through(rank))
        if {plan.through(peer) for peer in (rank, *peers)} <= self.there[rank]:
            self.there[rank].update(map(plan.made, plan.holding.owned(rank)))

    def _all_have_their_means(self) -> bool:
        plan = self.plan
        return all(
            self.means[rank] >= {start for part in parts for start, _ in plan.cut(part)}
            for rank, parts in enumerate(plan.holding.holds)
            if plan.members > 1
        )


@given(PLANS, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_nothing_is_made_before_all_holders_have_their_means(
    plan: HeldPlan, dice: random.Random
) -> None:
    members, holding = Members(plan, dice), plan.holding
    members.run()
    for rank in range(plan.members):
        missing = set(range(len(holding.ranges))) - holding.holds[rank]
        lacked = {n for part in missing for n in range(*holding.ranges[part])}
        others = {part for part, owner in enumerate(holding.owners) if owner != rank}
        assert members.made[rank] == lacked
        assert members.rows[rank] == others
    assert plan.members == 1 or members._all_have_their_means()


@given(PLANS)
def test_sums_come_before_what_is_made_and_a_row_after_it(plan: HeldPlan) -> None:
    for rank in range(plan.members):
        for peer in plan.peers(rank):
            hops = [(step.hop, step.start) for step in plan.stream(rank, peer)]
            assert [hop for hop, _ in hops].count(SUMS) == 1
            after = hops[[hop for hop, _ in hops].index(SUMS) + 1 :]
            assert all(hop in (MADE, ROW) for hop, _ in after)
            assert not after or after[-1][0] == ROW


def test_owners_own_alike() -> None:
    """Of eight that hold two parts each, in a circle, every one owns one, also the next time."""
    ranges = [(n * ALIGNMENT, (n + 1) * ALIGNMENT) for n in range(8)]
    holds = [frozenset({rank, (rank + 1) % 8}) for rank in range(8)]
    owners = owners_of(holds, ranges)
    assert owners is not None
    assert sorted(owners) == list(range(8))
    left = owners_of(holds[1:], ranges)
    assert left is not None
    assert max(left.count(rank) for rank in range(7)) == 2
