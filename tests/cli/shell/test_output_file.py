"""A file that was asked for is whole, or as it was before."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.cli.shell.signals import write_whole

TOLD_TO_END = """
import os, signal, sys
from pathlib import Path
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
from atom.cli.shell.failures import run_guarded
from atom.cli.shell.signals import write_whole

def half(place):
    place.write_text("half")
    os.kill(os.getpid(), int(sys.argv[2]))

sys.exit(run_guarded(lambda: write_whole(Path(sys.argv[1]), half)))
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_nothing_half_written(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", TOLD_TO_END, str(tmp_path / "run.png"), str(number.value)]
    assert subprocess.run(words, timeout=60, check=False).returncode == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "ends"),
    [(ValueError("a bug"), ValueError), (OSError("a library's own words"), StorageError)],
)
def test_what_breaks_off_leaves_nothing(
    fault: BaseException, ends: type[BaseException], tmp_path: Path
) -> None:
    file = tmp_path / "run.png"
    file.write_text("before")

    def half(place: Path) -> None:
        place.write_text("half")
        raise fault

    with pytest.raises(ends) as caught:
        write_whole(file, half)
    assert "None" not in str(caught.value)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]
