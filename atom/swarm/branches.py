"""Which of two chains is preferred: the order of all heads. Pure.

Read a chain from genesis on as a word, a letter for each round: a quorum of the voters decided it,
or it opened a branch. Words are compared as in a dictionary. Where two chains part, a quorum's
round comes before a branch, and of two branches the one that more of their parent's voters signed,
then the lower name. A chain that goes on comes before the one that it continues.

What follows a branch is the word of those who opened it alone, so nothing that follows can count:
neither rounds nor samples. It costs whoever is honest and was on the lesser branch the rounds
since; whatever counted there, one liar with a chain of its own would have more of it.
"""

from dataclasses import dataclass

SHOWN = 8
"""Of a chain's branches so many, the newest, are in a lease."""
_NAME_BYTES = 8

Rank = tuple[tuple[int, bool, int, int], ...]


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


def rank(digest: bytes, round_number: int, branches: tuple[Branch, ...]) -> Rank:
    """What heads are compared by: the greater is preferred. The order of tuples is that of the
    words: each run of quorum's rounds by the round it ends at, and what comes after it."""
    runs = [(b.round - 1, True, b.backing, -int.from_bytes(b.name)) for b in branches]
    return (*runs, (round_number, False, 0, -int.from_bytes(digest)))
