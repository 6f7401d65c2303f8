"""Another process that lives under our own name: the key was copied. Pure.

What the swarm's others see of it is the book of leases' (`freshness.py`): of a name that lives
twice, both are silent to it. That book needs whoever it judges in its readings; we are not.
"""

from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import Lease

_SIGNS = 2
"""An older lease of a dead process may turn up after a newer one; hardly twice."""


class TwinWatch:
    """Looks at what the directory has under our own name."""

    def __init__(self) -> None:
        self._incarnation = b""
        self._serial = 0
        self._signs = 0

    def sees(self, lease: Lease | None, me: Voter) -> bool:
        """Whether this lease shows that another process lives under our name. Of one that ended
        before we began the lease is there for a while, but it does not change."""
        if lease is None or lease.incarnation == me.incarnation:
            return False
        if lease.incarnation != self._incarnation:
            self._incarnation, self._serial, self._signs = lease.incarnation, lease.serial, 0
        elif lease.serial > self._serial:
            self._serial, self._signs = lease.serial, self._signs + 1
        return self._signs >= _SIGNS
