"""The core imports none of its extras, and trains where their folder is missing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.daemon.tiny_run import TINY_RUN, TINY_TEXT

ROOT = Path(__file__).parent.parent
TRAINS = """
import sys
from pathlib import Path
sys.modules["atom.extras"] = None  # an editable install would find it where it lies
from atom.daemon.peer.box import StartOptions
from atom.daemon.peer.setup import run_start
class Silence:
    note = progress = join_address = lambda self, *told: None
print(run_start(StartOptions(Path("run.toml"), Path("box.toml"), Path("state")), Silence()).name)
"""
BOX = '[device]\nuse = "cpu"\n[network]\nlisten = "127.0.0.1:0"\n[data]\npaths = ["text.txt"]\n'


def test_a_daemon_without_extras_trains_its_rounds_and_ends(tmp_path: Path) -> None:
    """Of a copy of the package from which they are removed."""
    left_out = shutil.ignore_patterns("extras", "__pycache__")
    shutil.copytree(ROOT / "atom", tmp_path / "core" / "atom", ignore=left_out)
    (tmp_path / "run.toml").write_text(TINY_RUN.replace("[run]", "[run]\nrounds = 3"))
    (tmp_path / "box.toml").write_text(BOX)
    (tmp_path / "text.txt").write_text(TINY_TEXT)
    there = {**os.environ, "PYTHONPATH": str(tmp_path / "core"), "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, "-P", "-c", TRAINS],
        cwd=tmp_path, env=there, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["ROUNDS_REACHED"]
    events = (tmp_path / "state" / "events.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["event"] == "round" for line in events) == 3
