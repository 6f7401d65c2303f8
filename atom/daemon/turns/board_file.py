"""The board of one device as a small file, and who of its writers lives. Nobody serves it.

A look takes the board's lock for a moment, reads, decides and writes. Everybody holds a lock of its
own for life: the system lets go of it whatever ends the process, so the others see at once who is
gone.
"""

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from atom.base.held_file import is_claimed, is_held, lies_at
from atom.daemon.turns.board import Account, Board, Claim, Turn, Wish

BEAT_S = 2.0
"""How often a look that changed nothing is written down, for others to see that we live on."""
ALIVE = ".alive"
"""Ends the name of a file that its member holds for life; its process id is in it."""
_DAMAGED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What is raised on the way from bytes to a board, if they are none."""
Change = Callable[[Board, Collection[str]], Board]
"""The board and the members that live → the board as it is from now on."""


class BoardBusy(OSError):
    """Somebody else is looking."""


class PlaceTaken(OSError):
    """Another process has this member's place."""

    def __init__(self, process: str) -> None:
        """`process`: its id; empty: it has not written it down yet, or could not."""
        self.process = process
        self.holder = f"process {process}" if process else "another process"
        super().__init__(f"{self.holder} has this daemon's place")


class BoardFile:
    """One member's door to the board in `folder`. `boot`: what is different after a restart of the
    machine, with which its clock begins anew. From one thread at a time."""

    def __init__(self, folder: Path, member: str, boot: str) -> None:
        self.member = member
        self._folder, self._boot = folder, boot
        self._alive: IO[str] | None = None

    def enter(self) -> None:
        """Says that we live, until `leave` or the end of the process; anew, if the folder was taken
        away meanwhile: else who comes later does not see us. Raises: PlaceTaken, OSError."""
        path = self._path_of(self.member)
        if self._alive is not None and not lies_at(self._alive, path):
            self._alive.close()
            self._alive = None
        if self._alive is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as undo:
                alive = undo.enter_context(path.open("a+"))
                if not is_claimed(alive, path):
                    raise PlaceTaken(path.read_text(encoding="ascii", errors="replace"))
                alive.truncate(0)
                alive.write(str(os.getpid()))
                alive.flush()
                undo.pop_all()
            self._alive = alive

    def leave(self) -> None:
        if self._alive is not None:
            with contextlib.suppress(OSError):
                self._path_of(self.member).unlink()
            self._alive.close()
            self._alive = None

    def look(self, change: Change, now: float) -> Board:
        """The board after `change`. Raises: BoardBusy, OSError: then nothing is changed."""
        with self._locked():
            board = self._read()
            members = [member for member in board.claims if self._lives(member)]
            changed = change(board, members)
            mine = board.claims.get(self.member)
            if mine is None or now - mine.seen_at_s >= BEAT_S or _news(changed, board):
                self._write(changed)
            return changed

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "board.lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as taken:
                raise BoardBusy("somebody else is looking") from taken
            yield

    def _lives(self, member: str) -> bool:
        return member == self.member or is_held(self._path_of(member))

    def _read(self) -> Board:
        """What cannot be read, or gone by, says nothing: a board is soon written again."""
        try:
            said = json.loads((self._folder / "board.json").read_bytes())
            return _board_of(said) if said["boot"] == self._boot else Board()
        except (FileNotFoundError, *_DAMAGED):
            return Board()

    def _write(self, board: Board) -> None:
        """Not synced: after a crash of the machine nobody asks for it."""
        aside = self._folder / "board.partial"
        aside.write_text(json.dumps({"boot": self._boot, **asdict(board)}), encoding="utf-8")
        os.replace(aside, self._folder / "board.json")

    def _path_of(self, member: str) -> Path:
        return self._folder / f"{member}{ALIVE}"


def _news(board: Board, before: Board) -> bool:
    def told(claims: Mapping[str, Claim]) -> dict[str, Claim]:
        return {member: replace(claim, seen_at_s=0.0) for member, claim in claims.items()}

    return board.turn != before.turn or told(board.claims) != told(before.claims)


def _board_of(said: Mapping[str, Any]) -> Board:
    """Everything is looked at, so that `rules` cannot fail on it. Raises: one of `_DAMAGED`."""
    claims = {_name(member): _claim_of(each) for member, each in said["claims"].items()}
    accounts = {run: _account_of(each) for run, each in said["accounts"].items()}
    if not {claim.run for claim in claims.values()} <= accounts.keys():
        raise ValueError("a run without an account")
    turn = None if said["turn"] is None else _turn_of(said["turn"])
    return Board(claims, accounts, turn, _number(said["charged_at_s"]))


def _claim_of(said: Mapping[str, Any]) -> Claim:
    share, slot_s, seen_at_s = (_number(said[key]) for key in ("share", "slot_s", "seen_at_s"))
    if min(share, slot_s) <= 0:
        raise ValueError("a share or a slot of nothing")
    wish, holds = Wish(said["wish"]), said["holds"] is True
    return Claim(str(said["run"]), str(said["place"]), share, slot_s, wish, seen_at_s, holds)


def _account_of(said: Mapping[str, Any]) -> Account:
    minutes = {int(minute): _number(each) for minute, each in said["minutes"].items()}
    return Account(_number(said["virtual_s"]), minutes)


def _turn_of(said: Mapping[str, Any]) -> Turn:
    asked_at_s = None if said["asked_at_s"] is None else _number(said["asked_at_s"])
    since_s, ends_s = _number(said["since_s"]), _number(said["ends_s"])
    return Turn(str(said["run"]), since_s, ends_s, asked_at_s, said["at_once"] is True)


def _name(member: str) -> str:
    """It becomes the name of a file."""
    if not (member.isascii() and member.isalnum() and len(member) <= 64):
        raise ValueError("a name that no member has")
    return member


def _number(said: float) -> float:
    if not math.isfinite(said):
        raise ValueError("not a number")
    return float(said)


def neighbours(machine: Path) -> frozenset[int]:
    """Process ids of all this user's daemons on this machine, our own among them. `machine`: the
    folder with a board per device."""
    found = set[int]()
    files = (file for device in _listed(machine) for file in _listed(device))
    for path in (file for file in files if file.name.endswith(ALIVE)):
        with contextlib.suppress(OSError, ValueError):
            if is_held(path):
                found.add(int(path.read_text(encoding="ascii")))
    return frozenset(found)


def _listed(folder: Path) -> list[Path]:
    """Nothing of what is none, or is deleted just now."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []
