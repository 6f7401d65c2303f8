"""DHT nodes that were met, kept for the next start, when those of the address may be gone."""

import json
from pathlib import Path

from atom.base.clock import Clock
from atom.daemon.state_directory import write_atomically
from atom.swarm.addresses import parse_multiaddrs
from atom.training.storage.disk import DiskRoom

_EVERY_S = 20.0
_MOST = 16


class KeptContacts:
    """For one thread."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._kept = known_contacts(path)
        self._due = 0.0

    def keep(self, contacts: tuple[str, ...], room: DiskRoom) -> None:
        """Writes them if they are others than last time: the first news at once, as who is killed
        and knows nobody goes on alone; then now and then."""
        if not contacts or contacts == self._kept or self._clock.now() < self._due:
            return
        self._due = self._clock.now() + _EVERY_S
        listed = json.dumps(contacts).encode()
        if room.attempt("addresses", lambda: write_atomically(self._path, listed)):
            self._kept = contacts


def known_contacts(path: Path) -> tuple[str, ...]:
    """Those of an earlier life; a damaged list is no reason not to start."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        return parse_multiaddrs([str(text) for text in listed][:_MOST])
    except (OSError, ValueError, TypeError):
        return ()
