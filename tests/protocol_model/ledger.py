"""Values, heads and contents by number, each made by the real `atom.swarm.chain.commit` once."""

from dataclasses import dataclass, replace
from functools import cache

from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    ChainRules,
    Commit,
    Head,
    MemberCount,
    Value,
    Vote,
    Voter,
    canonical_digest,
    genesis,
    is_quorum,
    signed_by,
    standing,
    vote_payload,
)
from atom.swarm.chain.succession import commit_problem

from . import cast
from .cast import BallotKey
from .state import NOTHING, Attempt, Survivors, Voters

Unit = tuple[int, int, int]
"""Work that one process counted while its gradients had one tag: (peer, incarnation, tag)."""


@dataclass(frozen=True)
class ValueRecord:
    value: Value
    parent: int
    origin: BallotKey
    """The attempt whose ring made it."""
    units: tuple[Unit, ...]
    result: int
    """The value that its ring made: itself, unless survivors finish one as their branch."""
    leaving: frozenset[int]
    """Members that leave after it."""

    @property
    def members(self) -> Voters:
        return tuple(unit[:2] for unit in self.units)


@dataclass(frozen=True)
class HeadRecord:
    head: Head
    path: tuple[int, ...]
    """Numbers of all heads from genesis to this one."""
    results: frozenset[int]
    units: frozenset[Unit]
    voters: Voters
    content: int
    """Return the content that a replica at this head has to hold."""


class Ledger:
    """Grows only; a number means the same for the whole search."""

    def __init__(self, voters: Voters) -> None:
        rules = ChainRules(trusted=frozenset(identity.peer_id for identity in cast.IDENTITIES))
        first = genesis(b"m" * 32, b"s" * 32, cast.voter(voters[0]), rules)
        first = replace(first, voters=cast.voters(voters))
        self.values: list[ValueRecord] = []
        self.heads = [HeadRecord(first, (0,), frozenset(), frozenset(), voters, 0)]
        self._value_numbers: dict[tuple, int] = {}
        self._head_numbers: dict[tuple[int, int], int] = {}
        self._contents: dict[tuple[int, int], int] = {}
        self._certified: dict[tuple, bool] = {}

    def value(
        self,
        parent: int,
        origin: BallotKey,
        units: tuple[Unit, ...],
        voters_next: tuple[Voter, ...],
        survivors: Survivors,
        leaving: frozenset[int],
        result: int | None = None,
    ) -> int:
        """The number of the value that this ring made; every member brought one sequence. Or of
        one that finishes the `result` of another value."""
        voting = tuple((v, v.absences) for v in voters_next)
        key = parent, origin, units, voting, survivors, leaving
        if key not in self._value_numbers:
            self._value_numbers[key] = len(self.values)
            head = self.heads[parent].head
            members = standing(cast.voters([unit[:2] for unit in units]), head.digest)
            value = Value(
                parent=head.digest,
                round=head.round + 1,
                origin=cast.ballot(origin),
                result_digest=canonical_digest("sum", [origin, sorted(units)]),
                gradient_norm=1.0,
                parent_state_digest=b"",
                contributions=tuple(MemberCount(v.peer_id, v.incarnation, 1, 1.0) for v in members),
                voters_next=voters_next,
                survivors=cast.voters(survivors),
            )
            made = len(self.values) if result is None else result
            self.values.append(ValueRecord(value, parent, origin, units, made, leaving))
        return self._value_numbers[key]

    def head_after(self, parent: int, value: int) -> int:
        known = self._head_numbers.get((parent, value))
        if known is not None:
            return known
        before, what = self.heads[parent], self.values[value]
        head = before.head.after(what.value)
        number = self._head_numbers[parent, value] = len(self.heads)
        self.heads.append(
            HeadRecord(
                head,
                (*before.path, number),
                before.results | {what.result},
                before.units | set(what.units),
                tuple(cast.key_of(v) for v in head.voters),
                self.content_after(before.content, what.result),
            )
        )
        return number

    def is_branch(self, head: int) -> bool:
        """Return True if no quorum decided the round that led to this head."""
        return any(b.round == self.round(head) for b in self.heads[head].head.branches)

    def content_after(self, content: int, result: int) -> int:
        """The bytes that these bytes become by a step with the result of that value."""
        return self._contents.setdefault((content, result), len(self._contents) + 1)

    def certified(self, a: Attempt) -> bool:
        """Return True if replicas at its head would take a commit with its votes."""
        key = a.head, a.value, a.ballot, a.votes
        if key not in self._certified:
            problem = commit_problem(self.heads[a.head].head, self._commit(a))
            self._certified[key] = problem is None
        return self._certified[key]

    def _commit(self, a: Attempt) -> Commit:
        what, ballot = self.values[a.value].value, cast.ballot(a.ballot)
        assert what.survivors == cast.voters(a.survivors)
        payload = vote_payload(what.parent, ballot, what.digest(), what.survivors)
        signed = []
        for key, voter in zip(a.votes, cast.voters(a.votes), strict=True):
            sign = cast.IDENTITIES[key[0]].sign
            signed.append(Vote(voter, sign(VOTE_DOMAIN, signed_by(voter, payload))))
        return Commit(what, ballot, tuple(signed))

    def electors(self, a: Attempt) -> Voters:
        """Return the voters that decide the attempt."""
        return a.survivors or self.heads[a.head].voters

    def is_quorum(self, head: int, votes: Voters) -> bool:
        """Return True for a real quorum, even if a mutant has another rule."""
        return _is_quorum(self.heads[head].voters, votes)

    def round(self, head: int) -> int:
        return NOTHING if head == NOTHING else self.heads[head].head.round


@cache
def _is_quorum(voters: Voters, votes: Voters) -> bool:
    return is_quorum(cast.voters(voters), set(cast.voters(votes)))
