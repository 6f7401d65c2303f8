"""What a daemon does when another process uses its key: the second ends, the first says so."""

from atom.base.errors import IdentityError

NEW_S = 20.0
"""Who finds a twin so soon after its start came second."""
WORDS = "another process uses this peer's key, and the swarm can count on neither of the two"
HINT = "end one of them; for a second peer begin with an empty folder: --state FOLDER"


def came_second() -> IdentityError:
    """What ends the one that began later. Whichever box starts again would be it: so nobody is to
    start again by itself."""
    return IdentityError(WORDS, HINT)
