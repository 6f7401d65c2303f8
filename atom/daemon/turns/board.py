"""What the daemons of one device tell each other: who is there, whose turn it is, who had what."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MINUTE_S = 60.0
HOUR_MINUTES = 60


class Wish(StrEnum):
    """What a daemon would do with the device."""

    NOTHING = "nothing"
    """Paused, finished, or nothing to compute."""
    TRAINING = "training"
    SET_UP = "set-up"
    """Measures the device and plans its memory: needs it for itself, and cannot stop half-way."""
    LEAVING = "leaving"
    """Sees what it counted committed, before its deadline."""


@dataclass(frozen=True)
class Claim:
    """Of one daemon. Daemons of one run have their turns together."""

    run: str
    place: str
    """Its state directory."""
    share: float
    slot_s: float
    wish: Wish
    seen_at_s: float
    """When it last looked; of the clock that all programs of this machine share."""
    holds: bool = False
    """It may use the device, or does not know yet that it may not."""


@dataclass(frozen=True)
class Account:
    """Of one run."""

    virtual_s: float
    """Seconds on the device by share: whoever has fewest is next."""
    minutes: Mapping[int, float] = field(default_factory=dict)
    """Seconds on the device by minute of the clock, of the last hour."""

    def charged(self, seconds: float, share: float, now: float) -> "Account":
        minute = int(now // MINUTE_S)
        kept = {m: s for m, s in self.minutes.items() if m > minute - HOUR_MINUTES}
        kept[minute] = kept.get(minute, 0.0) + seconds
        return Account(self.virtual_s + seconds / share, kept)

    def last_hour_s(self, now: float) -> float:
        oldest = int(now // MINUTE_S) - HOUR_MINUTES
        return sum(seconds for minute, seconds in self.minutes.items() if minute > oldest)


@dataclass(frozen=True)
class Turn:
    """Of one run, from its grant to the moment its last daemon gave the device back."""

    run: str
    since_s: float
    ends_s: float
    """When its slot is over, if others want the device then."""
    asked_at_s: float | None = None
    """Since when it is to end with the round."""
    at_once: bool = False
    """It is to end without waiting for the round."""


@dataclass(frozen=True)
class Board:
    """By member and by run."""

    claims: Mapping[str, Claim] = field(default_factory=dict)
    accounts: Mapping[str, Account] = field(default_factory=dict)
    turn: Turn | None = None
    charged_at_s: float = 0.0

    def of_run(self, run: str) -> Iterator[Claim]:
        return (claim for claim in self.claims.values() if claim.run == run)
