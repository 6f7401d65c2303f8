"""What peers tell each other of the ways between them: hints, measured in rounds gone by."""

import math
from dataclasses import dataclass

LEAST_BYTES_PER_S = 1.0
"""Nobody measures less: a rate is of a mebibyte at least, in a ring that came to its end."""
LONGEST_ROUND_TRIP_S = 60.0


@dataclass(frozen=True)
class Link:
    """What one peer measured of its way to another."""

    round_trip_s: float
    bytes_per_s: float = math.inf
    """As fast as it was seen to go when it was what held things up; infinite: it never was."""
