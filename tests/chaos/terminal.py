"""A terminal as people have one: a command runs on a real one (a pty), an emulator shows it."""

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyte

HOME = b"\x1b[H"
"""With which a display begins to draw the whole screen anew."""
_HIDES_THE_TERMINAL = {"COLUMNS", "LINES", "NO_COLOR"}
MOST_DRAWINGS = 60
"""One a second, and more where the size changes."""
ALTERNATE, CURSOR = 1049, 25
"""Private modes: the second screen, and a cursor that is seen."""


class Paper(pyte.Screen):
    """Counts its line feeds, those of lines that were too long as well, and knows its modes."""

    def __init__(self, columns: int, rows: int) -> None:
        self.line_feeds = 0
        self.modes_on = {CURSOR}
        super().__init__(columns, rows)

    def linefeed(self) -> None:
        self.line_feeds += 1
        super().linefeed()

    def set_mode(self, *modes: int, **kind: Any) -> None:
        self.modes_on |= set(modes) if kind.get("private") else set()
        super().set_mode(*modes, **kind)

    def reset_mode(self, *modes: int, **kind: Any) -> None:
        self.modes_on -= set(modes) if kind.get("private") else set()
        super().reset_mode(*modes, **kind)


@dataclass(frozen=True)
class Drawing:
    """What was drawn from one HOME to the next, on a terminal of that size."""

    lines: tuple[str, ...]
    fits: bool
    """From corner to corner: nothing folded, nothing pushed off, nothing left over."""

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def drawing(raw: bytes, columns: int, rows: int) -> Drawing:
    paper = Paper(columns, rows)
    pyte.ByteStream(paper).feed(raw)
    fits = raw.count(b"\n") == paper.line_feeds == rows - 1 and paper.cursor.x == columns
    return Drawing(tuple(paper.display), fits)


@dataclass(frozen=True)
class Ended:
    """What a command leaves behind."""

    code: int
    modes: frozenset[int]
    """Private ones that are on."""
    left: str
    """What it wrote on the ordinary screen after it had left the other one."""


class Terminal:
    """What one command shows, and keys to press. Made by `terminal`."""

    def __init__(self, command: subprocess.Popen[bytes], ours: int, timeout_s: float) -> None:
        self.command = command
        self._ours = ours
        self._timeout_s = timeout_s
        self._said = b""
        self._drawn = b""

    def resize(self, columns: int, rows: int) -> None:
        """The system tells the command by SIGWINCH, as it does for a window."""
        set_size(self._ours, columns, rows)

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def drawings(self, columns: int, rows: int) -> Iterator[Drawing]:
        """Those that are complete from now on, as they come. Raises: AssertionError where nothing
        is drawn any more."""
        while True:
            *whole, self._drawn = self._drawn.split(HOME)
            yield from (drawing(raw, columns, rows) for raw in whole)
            new = self._read()
            assert new, f"it has ended: {self._said[-2000:]!r}"
            self._drawn += new

    def fitting(self, columns: int, rows: int, word: str = "") -> Drawing:
        """The first with this word that fits; those before were begun for another size, or too
        early. What comes after it must fit as well."""
        drawings = islice(self.drawings(columns, rows), MOST_DRAWINGS)
        seen = list[Drawing]()
        for each in drawings:
            if seen and seen[-1].fits and word in seen[-1].text:
                assert each.fits, each.text
                return seen[-1]
            seen.append(each)
        raise AssertionError(f"none of {MOST_DRAWINGS} drawings fits with {word!r}: {seen[-1]}")

    def end(self, columns: int, rows: int) -> "Ended":
        """Waits for the command's end. Raises: AssertionError if it goes on drawing."""
        deadline = time.monotonic() + self._timeout_s
        while self._read():
            assert time.monotonic() < deadline, "it goes on"
        paper = Paper(columns, rows)
        pyte.ByteStream(paper).feed(self._said)
        modes, left = frozenset(paper.modes_on), self._said.rpartition(b"\x1b[?1049l")[2]
        return Ended(self.command.wait(self._timeout_s), modes, drawing(left, columns, rows).text)

    @property
    def settings(self) -> list[Any]:
        """How the line treats keys, as `stty` shows it."""
        return termios.tcgetattr(self._ours)

    def _read(self) -> bytes:
        """Empty once the command has closed it. Raises: AssertionError if it says nothing."""
        ready, _, _ = select.select([self._ours], [], [], self._timeout_s)
        assert ready, f"silent for {self._timeout_s:.0f} s: {self._said[-2000:]!r}"
        try:
            new = os.read(self._ours, 65536)
        except OSError:  # EIO
            return b""
        self._said += new
        return new


def _as_at_login() -> None:
    """In the child: the terminal is its own, and Ctrl-C ends it, whoever started the tests."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in what a shell runs in the background


def set_size(descriptor: int, columns: int, rows: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def terminal(
    words: Sequence[str], environment: Mapping[str, str], size: tuple[int, int], timeout_s: float
) -> Iterator[Terminal]:
    """Runs `words` on a terminal of (columns, rows); ends with the command ended. `timeout_s`: how
    long it may be silent."""
    ours, theirs = os.openpty()
    set_size(ours, *size)
    told = {key: value for key, value in environment.items() if key not in _HIDES_THE_TERMINAL}
    with subprocess.Popen(
        words,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=told | {"TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=_as_at_login,
    ) as command:
        os.close(theirs)
        try:
            yield Terminal(command, ours, timeout_s)
        finally:
            command.kill()
            os.close(ours)
