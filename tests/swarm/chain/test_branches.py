"""The order of all heads: chains are compared by where they part."""

import itertools

from atom.swarm.chain.commit import Branch, rank

LOW, HIGH = b"a" * 8, b"b" * 8
ALONE, BACKED = Branch(5, 1, LOW), Branch(5, 2, HIGH)

BEST_FIRST = [
    rank(b"x" * 32, 9, (Branch(9, 0, HIGH),)),  # quorums up to round 8
    rank(b"x" * 32, 7, ()),
    rank(b"y" * 32, 7, ()),  # the lower name
    rank(b"x" * 32, 6, (BACKED, Branch(6, 1, LOW))),
    rank(b"x" * 32, 5, (BACKED,)),
    rank(b"x" * 32, 99, (ALONE,)),
    rank(b"x" * 32, 99, (ALONE, Branch(7, 9, LOW))),  # a quorum decided until 98 there
    rank(b"x" * 32, 99, (Branch(5, 1, HIGH),)),
    rank(b"x" * 32, 4, ()),  # which all of these continue
]


def test_heads_are_ordered_by_where_their_chains_part() -> None:
    for better, worse in itertools.combinations(BEST_FIRST, 2):
        assert better > worse
    assert rank(b"x" * 32, 7, (ALONE,)) == rank(b"x" * 32, 7, (ALONE,))
