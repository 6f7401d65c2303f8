"""An open run in which strangers contribute under fresh peer ids to every round, for ever.

Each peer keeps all heads of the chain, and each head its records of recent contributors. They are
shared between heads: a round adds records of its own contributors, and none of the absent peers.
"""

import functools
import sys

from atom.swarm.chain.commit import ChainRules, Head, MemberCount, Value, Voter, genesis
from atom.swarm.chain.tenure import ROUNDS_TO_LOSE
from tests.swarm.chain_samples import BALLOT, INCARNATION

ROUNDS, FRESH = 60, 60
REGULAR = [f"regular {number}" for number in range(4)]


@functools.cache
def heads() -> list[Head]:
    founder = Voter(REGULAR[0], INCARNATION)
    rules = ChainRules(trusted=frozenset(REGULAR))
    made = [genesis(b"m" * 32, b"s" * 32, founder, rules)]
    for number in range(1, ROUNDS + 1):
        names = [*REGULAR, *(f"fresh {number}.{each}" for each in range(FRESH))]
        parts = tuple(MemberCount(name, INCARNATION, 1, 2.0) for name in names)
        result, state = b"r" * 32, b"d" * 32
        parent = made[-1]
        value = Value(parent.digest, number, BALLOT, result, 0.5, state, parts, parent.voters)
        made.append(parent.after(value))
    return made


def test_each_round_adds_only_the_records_of_its_contributors() -> None:
    """10,000 rounds like these take 120 MiB; with new records of absent peers, 680."""
    records = {id(record): record for head in heads() for record in head.tenures}
    assert len(records) <= len(REGULAR) + ROUNDS * (FRESH + len(REGULAR))
    tuples = sum(sys.getsizeof(head.tenures) for head in heads())
    size = tuples + sum(map(sys.getsizeof, records.values()))
    assert size / ROUNDS < 14_000


def test_no_regular_contributor_is_forgotten_for_them() -> None:
    assert heads()[-1].tenured == frozenset(REGULAR)
    assert len(heads()[-1].tenures) == len(REGULAR) + ROUNDS_TO_LOSE * FRESH
