"""A real run, watched on a real terminal (a pty, shown by an emulator) that is resized."""

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyte
import pytest
from swarm_of_processes import START_S, endless, environment, swarm_in

HOME = b"\x1b[H"
"""With which the display begins to draw the whole screen anew."""
SHOWS_CURSOR, ENTERS, LEAVES = b"\x1b[?25h", b"\x1b[?1049h", b"\x1b[?1049l"
MOST_DRAWINGS = 60
"""One a second, and more where the size changes."""
CHART, LAST_LINE = "loss (nats per token) by round", "Ctrl-C ends the display"
SIZES = {
    (100, 40): (CHART, LAST_LINE),
    (40, 10): ("seen   round",),
    (60, 14): ("seen   round", LAST_LINE),
    (20, 5): ("seen",),
    (1, 1): (),
    (200, 60): (CHART, LAST_LINE),
    (80, 24): (CHART, LAST_LINE),
}
"""Columns and rows, and what has to be seen there."""


class Paper(pyte.Screen):
    """Counts its line feeds, those of lines that were too long as well."""

    line_feeds = 0

    def linefeed(self) -> None:
        self.line_feeds += 1
        super().linefeed()


def drawn(raw: bytes, columns: int, rows: int) -> str | None:
    """What one drawing shows; None unless it goes from corner to corner: nothing folded, nothing
    pushed off, nothing left over."""
    paper = Paper(columns, rows)
    pyte.ByteStream(paper).feed(raw)
    fits = raw.count(b"\n") == paper.line_feeds == rows - 1 and paper.cursor.x == columns
    return "\n".join(paper.display) if fits else None


def read(terminal: int) -> bytes:
    """Empty once the command has closed it."""
    ready, _, _ = select.select([terminal], [], [], START_S)
    assert ready, "silent"
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO
        return b""


def fits(terminal: int, size: tuple[int, int]) -> str:
    """Resizes it; the second drawing in a row that fits: those before were begun for another size,
    or too early."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *reversed(size), 0, 0))
    said, before = b"", None
    for _ in range(MOST_DRAWINGS):
        while said.count(HOME) < 2:
            said += read(terminal)
        raw, _, said = said.partition(HOME)[2].partition(HOME)
        said, shown = HOME + said, drawn(raw, *size)
        if before and shown and all(word in shown for word in SIZES[size]):
            return shown
        before = shown
    raise AssertionError(f"nothing fits {size}: {before}")


def as_at_login() -> None:
    """In the child: the terminal is its own, and Ctrl-C ends it, whoever started the tests."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in what a shell runs in the background


@pytest.mark.timeout(4 * START_S)
def test_a_watched_terminal_is_resized_and_left_as_it_was(tmp_path: Path) -> None:
    with swarm_in(tmp_path, endless("seen", 2, 50), ["ada"]) as swarm:
        swarm.found()
        swarm.until(lambda: swarm.founder.last_round >= 6, "some rounds", START_S)
        swarm.founder.control.pause()
        address = swarm.founder.control.info()["join_address"]
        ours, theirs = os.openpty()
        settings = termios.tcgetattr(ours)
        told = environment(swarm.root) | {"TERM": "xterm-256color"}
        told = {key: told[key] for key in told.keys() - {"COLUMNS", "LINES", "NO_COLOR"}}
        with subprocess.Popen(
            (sys.executable, "-P", "-m", "atom", "watch", address),
            stdin=theirs, stdout=theirs, stderr=theirs, env=told,
            start_new_session=True, preexec_fn=as_at_login,
        ) as command:  # fmt: skip
            os.close(theirs)
            try:
                assert all(fits(ours, size) for size in SIZES)
                os.write(ours, b"\x03")
                rest = b"".join(iter(lambda: read(ours), b""))
                assert command.wait(START_S) == 0
            finally:
                command.kill()
        assert termios.tcgetattr(ours) == settings
        assert SHOWS_CURSOR in rest
        assert ENTERS not in rest
        assert b"round" in rest.rpartition(LEAVES)[2], "what was seen last stays"
        os.close(ours)
