"""Another process that lives under this peer's name: its key was copied. What the two are told
goes to either, and the swarm can count on neither. Pure."""

from atom.base.errors import StorageError
from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import Lease

NEW_S = 20.0
"""Who finds a twin so soon after its start came second, and ends."""
_SIGNS = 2
"""An older lease of a dead process may turn up after a newer one; hardly twice."""
WORDS = "another process uses this peer's key, and the swarm can count on neither of the two"
HINT = "end one of them; for a second peer begin with an empty folder: --state FOLDER"


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


def came_second() -> StorageError:
    """What ends the one that began later."""
    return StorageError(WORDS, HINT)
