"""The core imports none of its extras, and trains where their folder is missing."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from atom.base.errors import ConfigError
from atom.config.load import parse_peer_text
from atom.config.peer_file import PeerFile
from atom.daemon.extensions import NO_EXTENSIONS
from tests.daemon.silence import Silence
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


@pytest.mark.parametrize(
    ("wish", "key"),
    [
        ('[schedule]\nhours = ["daily 00:00-00:01"]', "schedule"),
        ("[metrics]\nport = 0", "metrics"),
        ('[log]\ntensorboard = "board"', "log"),
    ],
)
def test_what_nobody_would_see_to_is_refused(wish: str, key: str, tmp_path: Path) -> None:
    """A peer never trains outside its owner's hours, also where nothing knows hours."""
    peer = parse_peer_text(wish, tmp_path)
    with ExitStack() as stack:
        with pytest.raises(ConfigError, match=f"{key}: this daemon was built without"):
            NO_EXTENSIONS.monitors(peer, stack, Silence())
        NO_EXTENSIONS.monitors(PeerFile(), stack, Silence())
    wishes = NO_EXTENSIONS.wishes(PeerFile(), str, repr)
    with pytest.raises(ConfigError, match=key):
        wishes.change(peer)
