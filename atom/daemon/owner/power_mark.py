"""The limit that a GPU's power had before our daemons changed it, as a file that they share: one
that comes later, or after one that was killed, finds theirs in the driver and takes it for no limit
of the owner's."""

import contextlib
import json
from pathlib import Path

from atom.base.errors import StorageError
from atom.daemon.state_directory import write_atomically


class PowerMark:
    """There while a daemon's limit holds. Where the disk takes no file, each remembers its own."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def before(self, now_mw: int) -> int:
        """What to put back; `now_mw`: the limit as it is. If somebody else has set it since, or the
        machine began anew, it is that."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(self._path.read_bytes())
            if kept["set_mw"] == now_mw:
                return int(kept["before_mw"])
        return now_mw

    def put(self, before_mw: int, set_mw: int) -> None:
        text = json.dumps({"before_mw": before_mw, "set_mw": set_mw})
        with contextlib.suppress(OSError, StorageError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, text.encode())

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
