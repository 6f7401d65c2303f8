"""The daemons of one machine as small files in one folder, a file each, and whose turn it is on a
device: who waits longest is next, and a turn ends with a round. The rules are pure, and of daemons
with a device in common. Nobody serves the files.

Times are of the clock that all programs of this machine share. Daemons of one run have their turns
together.

A daemon holds a lock on its file for life: the system lets go of it whatever ends the process, so
the others see at once who is gone. A look takes the folder's lock for a moment, reads all files,
decides, and writes the daemon's own.
"""

import contextlib
import fcntl
import json
import math
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from atom.base.files import is_claimed, is_held, lies_at

STANDINGS = HAS_IT, WAITS, NOT_NOW = "has the device", "waits", "not now"
"""What a claim may be, in words."""


@dataclass(frozen=True)
class Claim:
    """Of one daemon."""

    run: str
    """Its name, and with it its owner."""
    place: str
    """Its state directory."""
    slot_s: float
    """How long a turn is, as it wishes."""
    turn: str
    """One of `STANDINGS`."""
    since_s: float
    """Since when it has the device; else when it had it last, or began."""
    devices: tuple[str, ...]
    """All that it uses: they come and go together."""

    @classmethod
    def of(
        cls, run: str, place: str, slot_s: float, turn: str, since_s: float, devices: list[str]
    ) -> "Claim":
        """Raises: ValueError for values that no daemon writes."""
        if turn not in STANDINGS or not slot_s > 0 or not math.isfinite(since_s + slot_s):
            raise ValueError("not a claim")
        return cls(str(run), str(place), float(slot_s), turn, float(since_s), (*map(str, devices),))

    def meets(self, other: "Claim") -> bool:
        """Whether both cannot have their turns at once."""
        return not {*self.devices}.isdisjoint(other.devices)


def may_take(mine: Claim, others: Iterable[Claim], now: float) -> bool:
    """Whether a daemon that waits has the device from now on."""
    others = list(others)
    holders = [other for other in others if other.turn == HAS_IT]
    if any(holder.run != mine.run for holder in holders):
        return False
    if holders:  # with its own run, unless that turn is over
        return not must_give(holders[0], [*others, mine], now, round_ended=True)
    ahead = min(_waiting(others), key=_queue, default=mine)
    return ahead.run == mine.run or _queue(mine) <= _queue(ahead)


def must_give(
    mine: Claim, others: Iterable[Claim], now: float, round_ended: bool, idle: bool = False
) -> bool:
    """Whether a daemon that has the device is to let others have it. `idle`: it has nothing to
    compute."""
    others = list(others)
    if any(each.turn == HAS_IT and each.run != mine.run and _queue(each) < _queue(mine)
           for each in others):  # fmt: skip
        return True  # it was taken while nobody could see the others
    waiting = [claim for claim in _waiting(others) if claim.run != mine.run]
    if not waiting or idle:
        return bool(waiting)
    together = [mine, *(each for each in others if each.turn == HAS_IT and each.run == mine.run)]
    lasts_s = now - min(each.since_s for each in together)
    slot_s = min(claim.slot_s for claim in (*together, *waiting))
    return lasts_s >= (slot_s if round_ended else 2 * slot_s)


def _waiting(claims: Iterable[Claim]) -> Iterator[Claim]:
    return (claim for claim in claims if claim.turn == WAITS)


def _queue(claim: Claim) -> tuple[float, str]:
    return claim.since_s, claim.run


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


def claims_in(folder: Path) -> Iterator[Claim]:
    """Of the living daemons, as far as they can be read now."""
    for path in list(folder.glob(f"*{CLAIM}")):
        with contextlib.suppress(OSError):
            if is_held(path) and (claim := _read(path)) is not None:
                yield claim


def neighbours(machine: Path) -> frozenset[int]:
    """Process ids of all this user's daemons on this machine, our own among them."""
    found = set[int]()
    for path in list(machine.glob(f"*{CLAIM}")):
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
