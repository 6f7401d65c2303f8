"""A chain's branches: compared like tuples, and kept once however many heads know of them."""

import itertools
import random
import tracemalloc

from atom.swarm.chain.branches import NO_BRANCHES, SHOWN, Branch, Branches, Rank

MANY = 10_000


def branch(number: int, backing: int = 1, name: bytes = b"n" * 8) -> Branch:
    return Branch(number, backing, name)


def as_tuple(rank: Rank) -> tuple[tuple[int, bool, int, int], ...]:
    """The word itself, letter by letter."""
    runs = [(b.round - 1, True, b.backing, -int.from_bytes(b.name)) for b in rank.branches]
    return (*runs, (rank.round, False, 0, -int.from_bytes(rank.digest)))


def test_heads_are_ordered_as_words() -> None:
    dice = random.Random(4)
    ranks = []
    for _ in range(60):
        rounds = sorted(dice.sample(range(1, 7), dice.randrange(5)))
        letters = [branch(n, dice.randrange(2), dice.choice([b"a" * 8, b"b" * 8])) for n in rounds]
        ranks.append(
            Rank(dice.choice([b"x", b"y"]) * 32, dice.randrange(6, 9), Branches.of(*letters))
        )
    for one, other in itertools.product(ranks, repeat=2):
        assert (one < other) == (as_tuple(one) < as_tuple(other))
        assert (one == other) == (as_tuple(one) == as_tuple(other))


def test_any_part_of_it_is_that_of_a_tuple() -> None:
    letters = tuple(branch(number) for number in range(1, 41))
    whole = Branches.of(*letters)
    assert tuple(whole) == letters
    assert len(whole) == 40
    for count in range(43):
        assert whole.first(count) == Branches.of(*letters[:count])
        assert whole.newest(count) == letters[max(0, 40 - count) :]
    assert whole.last == letters[-1]
    assert NO_BRANCHES.last is None
    assert not NO_BRANCHES


def test_where_two_part_is_found_wherever_it_is() -> None:
    letters = tuple(branch(number) for number in range(1, 41))
    whole = Branches.of(*letters)
    for at in range(40):
        other = Branches.of(*letters[:at], branch(at + 1, 2), *letters[at + 1 :])
        assert whole.parting(other) == (branch(at + 1), branch(at + 1, 2))
        assert whole.parting(whole.first(at)) == (branch(at + 1), None)
    assert whole.parting(Branches.of(*letters)) == (None, None)


def test_a_chain_of_branches_takes_memory_by_their_number() -> None:
    tracemalloc.start()
    heads = [NO_BRANCHES]
    for number in range(MANY):
        heads.append(heads[-1].then(branch(number + 1)))
    taken_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken_bytes < 600 * MANY, "as tuples: 400 MB"
    assert heads[-1].newest(SHOWN)[-1].round == MANY


def test_comparing_long_chains_looks_at_few_of_their_branches() -> None:
    ours = Branches.of(*(branch(number) for number in range(1, MANY)))
    theirs = Branches.of(*(branch(number) for number in range(1, 4000)), branch(4000, 2))
    looked_at = 0

    class Watched(Branches):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return super().__eq__(other)

        __hash__ = Branches.__hash__

    for link in (ours, theirs):
        here = link
        while here:
            older = here._older
            here.__class__ = Watched
            here = older
    assert Rank(b"x" * 32, MANY, ours) < Rank(b"y" * 32, MANY, theirs)
    assert looked_at < 100
