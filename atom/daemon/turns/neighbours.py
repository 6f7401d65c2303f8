"""All daemons of this user on this machine, whichever device they use: what one of them does is no
stranger's doing to the others."""

from contextlib import suppress
from pathlib import Path

from atom.base.held_file import is_held
from atom.daemon.turns.board_file import ALIVE


def neighbours(machine: Path) -> frozenset[int]:
    """Ids of their processes, our own among them. `machine`: the folder with a board per device."""
    found = set[int]()
    files = (file for device in _listed(machine) for file in _listed(device))
    for path in (file for file in files if file.name.endswith(ALIVE)):
        with suppress(OSError, ValueError):
            if is_held(path):
                found.add(int(path.read_text(encoding="ascii")))
    return frozenset(found)


def _listed(folder: Path) -> list[Path]:
    """Nothing of what is none, or is deleted just now."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []
