"""Which processes are daemons of ours, as the files say that they hold."""

import os
from pathlib import Path

from atom.daemon.turns.board_file import BoardFile, neighbours


def test_daemons_of_all_devices_are_found_and_the_dead_are_not(tmp_path: Path) -> None:
    for nowhere in ("absent", "x" * 300):  # which no folder can be called: a look at it fails
        assert neighbours(tmp_path / nowhere) == frozenset()
    files = [BoardFile(tmp_path / device, "a", "boot") for device in ("cpu", "GPU-7")]
    for file in files:
        file.enter()
    (tmp_path / "cpu" / "b.alive").write_text("4711")  # nobody holds it
    assert neighbours(tmp_path) == {os.getpid()}
    for file in files:
        file.leave()
    assert neighbours(tmp_path) == frozenset()
