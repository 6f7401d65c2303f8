"""The board of one device as a small file, and who of its writers lives. Nobody serves it.

A look takes the board's lock for a moment, reads, decides and writes. Everybody holds a lock of its
own for life: the system lets go of it whatever ends the process, so the others see at once who is
gone.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from atom.daemon.turns.board import Account, Board, Claim, Turn, Wish

BEAT_S = 2.0
"""How often a look that changed nothing is written down, for others to see that we live on."""
Change = Callable[[Board, Collection[str]], Board]
"""The board and the members that live → the board as it is from now on."""


class BoardBusy(OSError):
    """Somebody else is looking."""


class BoardFile:
    """One member's door to the board in `folder`. `boot`: what is different after a restart of the
    machine, with which its clock begins anew. From one thread at a time."""

    def __init__(self, folder: Path, member: str, boot: str) -> None:
        self.member = member
        self._folder, self._boot = folder, boot
        self._alive: IO[str] | None = None

    def enter(self) -> None:
        """Says that we live, until `leave` or the end of the process. Raises: OSError."""
        if self._alive is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            alive = self._path_of(self.member).open("a+")
            fcntl.flock(alive, fcntl.LOCK_EX)  # at most for as long as somebody probes it
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
        if member == self.member:
            return True
        try:
            with self._path_of(member).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def _read(self) -> Board:
        """What cannot be read says nothing: a board is soon written again."""
        try:
            said = json.loads((self._folder / "board.json").read_bytes())
            return _board_of(said) if said["boot"] == self._boot else Board()
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            return Board()

    def _write(self, board: Board) -> None:
        """Not synced: after a crash of the machine nobody asks for it."""
        aside = self._folder / "board.partial"
        aside.write_text(json.dumps({"boot": self._boot, **asdict(board)}), encoding="utf-8")
        os.replace(aside, self._folder / "board.json")

    def _path_of(self, member: str) -> Path:
        return self._folder / f"{member}.alive"


def _news(board: Board, before: Board) -> bool:
    def told(claims: Mapping[str, Claim]) -> dict[str, Claim]:
        return {member: replace(claim, seen_at_s=0.0) for member, claim in claims.items()}

    return board.turn != before.turn or told(board.claims) != told(before.claims)


def _board_of(said: Mapping[str, Any]) -> Board:
    """Raises: ValueError, TypeError, KeyError, AttributeError."""
    claims = {
        str(member): Claim(**{**each, "wish": Wish(each["wish"])})
        for member, each in said["claims"].items()
    }
    accounts = {
        str(run): Account(
            float(each["virtual_s"]), {int(m): float(s) for m, s in each["minutes"].items()}
        )
        for run, each in said["accounts"].items()
    }
    turn = None if said["turn"] is None else Turn(**said["turn"])
    return Board(claims, accounts, turn, float(said["charged_at_s"]))
