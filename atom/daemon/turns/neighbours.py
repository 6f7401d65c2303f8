"""All daemons of this user on this machine, whichever device they use: what one of them does is no
stranger's doing to the others."""

from contextlib import suppress
from pathlib import Path

from atom.base.held_file import is_held
from atom.daemon.turns.board_file import ALIVE


def neighbours(machine: Path) -> frozenset[int]:
    """Ids of their processes, our own among them. `machine`: the folder with a board per device."""
    found = set[int]()
    for path in machine.glob(f"*/*{ALIVE}"):
        with suppress(OSError, ValueError):
            if is_held(path):
                found.add(int(path.read_text(encoding="ascii")))
    return frozenset(found)
