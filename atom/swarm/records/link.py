"""What peers tell each other of the ways between them: hints, measured in rounds gone by."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """What one peer measured of its way to another."""

    round_trip_s: float
    bytes_per_s: float = math.inf
    """As fast as it was seen to go when it was what held things up; infinite: it never was."""
