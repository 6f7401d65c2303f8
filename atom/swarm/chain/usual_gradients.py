"""How much one member may add to a mean gradient, by what the chain says of earlier ones. Pure.

The chain certifies the norm of every round's mean. Noise is no reason to exceed it by much: if S
sequences gave a mean of norm N, then what c of them add to that mean is c/S of the true gradient
and noise of sqrt(c/S)·N at most: together less than 2·N, all of it in one number at worst. So a
hundred times N is a gradient that has grown fiftyfold since, or an error, or a lie. All members of
a ring share its head, hence what follows from it here.
"""

import statistics
from dataclasses import dataclass

LARGEST_PART = 1e30
"""Of any number in one member's sums, in any case: a thousand such do not overflow."""
NORMS_REMEMBERED = 16
"""Of the latest rounds. Their median counts: one liar's round moves it little."""
_NORMS_WANTED = 4
"""Fewer say nothing yet: the first steps of a model are like no others."""
_TIMES_USUAL = 100.0
_UNTRIED = 1e6
"""In the mean, where nothing is certified."""
_LEAST = 1e-6
_MOST = 1e12
"""The sum of a thousand members' parts has a square within float32, where the second moment is."""


@dataclass(frozen=True)
class PartLimit:
    """What each member of a ring holds its own sums against."""

    in_mean: float
    """The largest number that a part may add to the mean."""
    global_batch: int
    """A ring averages at least so many sequences."""

    def of(self, sequences: int) -> float:
        """In a part of a sum over `sequences`; or in sums over so many, whatever others add."""
        return min(self.in_mean * max(sequences, self.global_batch), LARGEST_PART)


def part_limit(norms: tuple[float, ...], global_batch: int) -> PartLimit:
    """At a head whose latest rounds had means of these norms. Those of zero say nothing."""
    said = [norm for norm in norms if norm > 0.0]
    if len(said) < _NORMS_WANTED:
        return PartLimit(_UNTRIED, global_batch)
    in_mean = _TIMES_USUAL * statistics.median(said)
    return PartLimit(min(max(in_mean, _LEAST), _MOST), global_batch)
