"""A peer whose month is used up waits, answers its owner, and goes on."""

import json
import threading
from datetime import datetime
from pathlib import Path

import pytest

from atom.base.errors import ConfigError, ControlError
from atom.config.load import load_peer_file
from atom.daemon.owner.standing_by import STANDING_BY, StandBy

FRIDAY = datetime(2026, 11, 27)
SPENT = {"days": {"2026-11-03": 9000}, "round_bytes": 1000, "per_month": 10_000}


class Scene:
    def __init__(self, root: Path) -> None:
        self.file, kept, self.wall = root / "box.toml", root / "traffic.json", FRIDAY
        self.allow("10 kB")
        kept.write_text(json.dumps(SPENT))
        peer = load_peer_file(self.file)
        self.standing = StandBy({"run": "tiny"}, peer, self.file, kept, lambda: self.wall)

    def allow(self, per_month: str) -> None:
        self.file.write_text(f'[network]\nper_month = "{per_month}"\n')

    def waiting(self) -> threading.Thread:
        thread = threading.Thread(target=self.standing.wait, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_it_says_until_when(scene: Scene) -> None:
    info = scene.standing.info()
    assert (info["run"], info["state"]) == ("tiny", STANDING_BY)
    assert info["paused"].endswith("it goes on on 01 December 2026")
    assert info["traffic"] == {"today_bytes": 0, "month_bytes": 9000, "per_month_bytes": 10_000}


def test_the_next_month_ends_it(scene: Scene) -> None:
    scene.wall = datetime(2026, 12, 1)
    scene.standing.wait()
    assert not scene.standing.leaves


def test_a_larger_allowance_ends_it(scene: Scene) -> None:
    waiting = scene.waiting()
    scene.allow("nonsense")
    with pytest.raises(ConfigError):
        scene.standing.reload()
    assert waiting.is_alive()
    scene.allow("1 GB")
    changed = [{"key": "network.per_month", "live": True, "costs": ""}]
    assert scene.standing.reload() == changed
    waiting.join(60.0)
    assert not waiting.is_alive()
    assert not scene.standing.leaves
    assert scene.standing.peer.network.per_month_bytes == 10**9


def test_its_owner_may_end_it(scene: Scene) -> None:
    waiting = scene.waiting()
    assert scene.standing.leave(None) == "ending: nothing was counted"
    waiting.join(60.0)
    assert not waiting.is_alive()
    assert scene.standing.leaves


def test_it_trains_nothing_that_could_be_paused_or_recorded(scene: Scene) -> None:
    for command in (scene.standing.pause, scene.standing.resume, lambda: scene.standing.trace(0)):
        with pytest.raises(ControlError, match=r"stands by: its .* a month") as refused:
            command()
        assert "per_month" in refused.value.hint
