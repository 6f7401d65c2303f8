"""Which of two chains is preferred: the order of all heads. Pure.

Read a chain from genesis on as a word, a letter for each round: a quorum of the voters decided it,
or it opened a branch. Words are compared as in a dictionary. Where two chains part, a quorum's
round comes before a branch, and of two branches the one that more of their parent's voters signed,
then the lower name. A chain that goes on comes before the one that it continues.

What follows a branch is the word of those who opened it alone, so nothing that follows can count:
neither rounds nor samples. It costs whoever is honest and was on the lesser branch the rounds
since; whatever counted there, one liar with a chain of its own would have more of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import total_ordering

from blake3 import blake3

SHOWN = 8
"""Of a chain's branches so many, the newest, are in a lease."""
_NAME_BYTES = 8


@dataclass(frozen=True, slots=True)
class Branch:
    """A round on a chain that was decided without a quorum."""

    round: int
    backing: int
    """How many voters of the parent signed it, by peer id: nobody can sign for others."""
    name: bytes
    """The first 8 bytes of the head that it made."""


def name_of(digest: bytes) -> bytes:
    return digest[:_NAME_BYTES]


class Branches:
    """The branches of one chain, oldest first. Immutable; a longer one shares the shorter.

    Every head of a chain has one, and whoever may sign branches may sign very many. So each link
    knows the one before it, one further back (`_jump`: as in a skew-binary list, so that any is
    reached in steps of the logarithm), and a digest of all.
    """

    __slots__ = ("_count", "_digest", "_jump", "_last", "_older")

    def __init__(self) -> None:
        """Of a chain without any."""
        self._older = self._jump = self
        self._last: Branch | None = None
        self._count, self._digest = 0, b""

    @staticmethod
    def of(*branches: Branch) -> "Branches":
        whole = NO_BRANCHES
        for branch in branches:
            whole = whole.then(branch)
        return whole

    def then(self, branch: Branch) -> "Branches":
        """With one more."""
        longer = Branches()
        jump = self._jump
        even = self._count - jump._count == jump._count - jump._jump._count
        longer._older, longer._jump = self, jump._jump if even else self
        longer._last, longer._count = branch, self._count + 1
        text = f"{branch.round} {branch.backing} {branch.name.hex()}"
        longer._digest = blake3(self._digest + text.encode()).digest()
        return longer

    def first(self, count: int) -> "Branches":
        """The oldest so many, or all."""
        found = self
        while found._count > count:
            found = found._jump if found._jump._count >= count else found._older
        return found

    def newest(self, count: int) -> tuple[Branch, ...]:
        found: list[Branch] = []
        here = self
        while here._last is not None and len(found) < count:
            found.append(here._last)
            here = here._older
        return tuple(reversed(found))

    @property
    def last(self) -> Branch | None:
        return self._last

    def parting(self, other: "Branches") -> tuple[Branch | None, Branch | None]:
        """The first of each that the other does not have at this place; None: it ends before."""
        common = min(self._count, other._count)
        mine, theirs = self.first(common), other.first(common)
        if mine == theirs:
            return self.first(common + 1)._beyond(common), other.first(common + 1)._beyond(common)
        while mine._older != theirs._older:
            far = mine._jump != theirs._jump
            mine = mine._jump if far else mine._older
            theirs = theirs._jump if far else theirs._older
        return mine._last, theirs._last

    def _beyond(self, count: int) -> Branch | None:
        return self._last if self._count > count else None

    def __iter__(self) -> Iterator[Branch]:
        return iter(self.newest(self._count))

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Branches) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        left_out = "… " if self._count > SHOWN else ""
        return f"Branches({left_out}{', '.join(map(repr, self.newest(SHOWN)))})"


NO_BRANCHES = Branches()


@total_ordering
@dataclass(frozen=True)
class Rank:
    """What heads are compared by: the greater is preferred."""

    digest: bytes
    round: int
    branches: Branches

    def __lt__(self, other: "Rank") -> bool:
        mine, theirs = self.branches.parting(other.branches)
        return self._letter(mine) < other._letter(theirs)

    def _letter(self, branch: Branch | None) -> tuple[int, bool, int, int]:
        """Each run of quorum's rounds by the round it ends at, and what comes after it."""
        if branch is None:
            return self.round, False, 0, -int.from_bytes(self.digest)
        return branch.round - 1, True, branch.backing, -int.from_bytes(branch.name)
