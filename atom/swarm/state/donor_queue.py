"""Who is asked next for a blob, and who never again. Pure: the time is given.

A donor that lied is not asked again, nor one that was silent from the beginning: it is frozen, or
gone. One that broke off, was busy, or fell silent after it had helped may only have had a bad
moment: it is tried again after a while, a few times in a row without a piece at most.
"""

from collections.abc import Sequence

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.transport.contacts import Unreachable

LIES = frozenset(
    {
        Reason.BAD_CERTIFICATE,
        Reason.BAD_WEIGHT,
        Reason.HASH_MISMATCH,
        Reason.MALFORMED,
        Reason.STATE_MISMATCH,
        Reason.TOO_LARGE,
        Reason.WRONG_HEAD,
    }
)
"""Refusals that tell on the donor, not on the network."""


class DonorQueue:
    """Donors that wait for their turn, preferred first. Not thread-safe."""

    def __init__(self, donors: Sequence[str], tries: int, pause_s: float) -> None:
        """A donor is given up after `tries` failures in a row; the pause doubles each time."""
        self._waiting = [(0.0, donor) for donor in dict.fromkeys(donors)]
        self._failures: dict[str, int] = {}
        self._helped: set[str] = set()
        self._tries = tries
        self._pause_s = pause_s
        self.last = PeerRefused(Reason.NOT_FOUND, "no donors")
        """Why the last one that failed did."""

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, now: float) -> str | None:
        """The next donor; None if nobody's turn has come."""
        for index, (not_before, donor) in enumerate(self._waiting):
            if not_before <= now:
                del self._waiting[index]
                return donor
        return None

    def first(self, count: int) -> list[str]:
        return [donor for _, donor in self._waiting[:count]]

    def forget(self, donor: str) -> None:
        """Takes it off the list."""
        self._waiting = [(at, other) for at, other in self._waiting if other != donor]

    def helped(self, donor: str) -> None:
        """A piece of it landed: its failures are forgiven."""
        self._failures.pop(donor, None)
        self._helped.add(donor)

    def failed(self, donor: str, error: PeerRefused | OSError, now: float) -> bool:
        """Puts it back for later; False if it will not be asked again."""
        self.last = as_refusal(error)
        failures = self._failures[donor] = self._failures.get(donor, 0) + 1
        gone = isinstance(error, TimeoutError | Unreachable) and donor not in self._helped
        if gone or not _may_pass(error) or failures >= self._tries:
            return False
        self._waiting.append((now + self._pause_s * 2 ** (failures - 1), donor))
        return True


def as_refusal(error: PeerRefused | OSError) -> PeerRefused:
    """What became of a donor, under a name."""
    if isinstance(error, PeerRefused):
        return error
    silent = isinstance(error, TimeoutError)
    return PeerRefused(Reason.TIMEOUT if silent else Reason.UNREACHABLE, str(error))


def _may_pass(error: PeerRefused | OSError) -> bool:
    if isinstance(error, PeerRefused):
        return error.reason in {Reason.BUSY, Reason.TOO_MANY_CONNECTIONS, Reason.TIMEOUT}
    return True
