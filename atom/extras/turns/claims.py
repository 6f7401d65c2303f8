"""The daemons of one device as small files in one folder, a file each. Nobody serves them.

A daemon holds a lock on its file for life: the system lets go of it whatever ends the process, so
the others see at once who is gone. A look takes the folder's lock for a moment, reads all files,
decides, and writes the daemon's own.
"""

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

from atom.base.files import is_claimed, is_held, lies_at
from atom.extras.turns.rules import Claim

CLAIM = ".claim"
MOST_BYTES = 1 << 14
Decide = Callable[[Mapping[str, Claim]], Claim]
"""The others' claims, by member → our own from now on."""


class ClaimFile:
    """One daemon's file in `folder`. From one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}{CLAIM}"
        self._file: IO[str] | None = None

    def look(self, decide: Decide) -> dict[str, Claim]:
        """All claims after `decide`; ours is "". Raises: OSError, BlockingIOError if somebody else
        looks: then nothing is changed."""
        with self._locked():
            self._enter()
            others = living(self._folder, self._path)
            ours = decide(others)
            self._write(ours)
            return {**others, "": ours}

    def leave(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._file.close()
            self._file = None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "claims.lock").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield

    def _enter(self) -> None:
        """Anew, if the folder was taken away meanwhile: else who comes later does not see us."""
        if self._file is not None and not lies_at(self._file, self._path):
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = self._path.open("a+", encoding="utf-8", errors="replace")
            if not is_claimed(self._file, self._path):
                raise OSError(f"{self._path} is locked by another process")

    def _write(self, claim: Claim) -> None:
        assert self._file is not None
        text = json.dumps(asdict(claim))
        self._file.seek(0)
        if self._file.read(MOST_BYTES) != text:
            self._file.truncate(0)
            self._file.write(text)
            self._file.flush()


def living(folder: Path, own: Path) -> dict[str, Claim]:
    """Of each daemon but that of `own`, in the locked folder. Files of dead ones are removed.

    Raises: BlockingIOError for a living one's that is no claim: it may have the device, and writes
    its claim again when it looks.
    """
    found: dict[str, Claim] = {}
    for path in set(folder.glob(f"*{CLAIM}")) - {own}:
        if not is_held(path):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            continue
        claim = _read(path)
        if claim is None:
            raise BlockingIOError(f"{path} is no claim")
        found[path.name] = claim
    return found


def neighbours(machine: Path) -> frozenset[int]:
    """Process ids of all this user's daemons on this machine, our own among them. `machine`: the
    folder with a folder per device."""
    found = set[int]()
    for path in list(machine.glob(f"*/*{CLAIM}")):
        with contextlib.suppress(OSError, ValueError):
            if is_held(path):
                found.add(int(path.name.partition("-")[0]))
    return frozenset(found)


def _read(path: Path) -> Claim | None:
    """None: it is no claim."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES)
    try:
        return Claim.of(**json.loads(data))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None
