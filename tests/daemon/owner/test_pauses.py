"""Pauses of the owner and of the schedule, their events, and the mark on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atom.daemon.owner.pauses import GIVE_BACK_S, Pauses
from atom.training.replica.worker import RunGate
from tests.event_list import EventList
from tests.read_only_disk import turn_read_only
from tests.training.worker_scene import SmallDevice


class Scene:
    def __init__(self, mark: Path) -> None:
        self.device, self.events = SmallDevice(), EventList()
        device: Any = self.device
        self.gate = RunGate(device, lambda: None)
        self.pauses = Pauses(self.gate, self.events, mark)

    @property
    def reason(self) -> str:
        return self.gate.why_not


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "paused")


def test_the_owners_pause_outlives_the_process(scene: Scene, tmp_path: Path) -> None:
    """A service may restart a process that was killed or has left, without any `atom resume`."""
    mark = tmp_path / "paused"
    scene.pauses.pause()
    again = Scene(mark)
    assert again.device.told == [GIVE_BACK_S], "before the worker starts"
    assert "owner" in again.reason
    assert again.events.events == [{"event": "paused", "reason": "owner"}]

    again.pauses.end()
    third = Scene(mark)
    assert third.pauses.resume() == "resumed"
    assert Scene(mark).device.told == []


def test_a_pause_that_the_disk_does_not_keep_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path / "nowhere" / "paused")
    scene.device.free = False
    told = scene.pauses.pause()
    assert "a restart would end the pause: cannot write" in told
    assert "at the end of the current pass" in told
    assert scene.pauses.resume() == "resumed"
    turn_read_only(monkeypatch)
    assert scene.pauses.resume() == "not paused", "a missing mark needs no writes"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (lambda pauses: pauses.end(), "not paused"),
        (lambda pauses: pauses.wish("on battery"), "resumed, but still on battery"),
    ],
)
def test_a_mark_that_stays_is_told_whatever_else_is(
    before: Callable[[Pauses], object], said: str, scene: Scene, tmp_path: Path
) -> None:
    """The next start would be paused, and the owner would not know why."""
    scene.pauses.pause()
    (tmp_path / "paused").unlink()
    (tmp_path / "paused").mkdir()  # no unlink takes that away
    before(scene.pauses)
    told = scene.pauses.resume()
    assert told.startswith(said)
    assert "; a restart would be paused: cannot remove" in told
    (tmp_path / "paused").rmdir()
    assert "restart" not in scene.pauses.resume()


def test_the_owner_pauses_and_resumes_once(scene: Scene) -> None:
    assert scene.pauses.resume() == "not paused"
    assert scene.pauses.pause().endswith("memory is free")
    assert scene.pauses.pause() == "already paused"
    assert "owner" in scene.reason
    assert scene.pauses.resume() == "resumed"
    assert scene.reason == ""
    assert scene.device.told == [GIVE_BACK_S, "resume"]
    assert [event["event"] for event in scene.events.events] == ["paused", "resumed"]


def test_wishes_pause_beside_the_owner(scene: Scene) -> None:
    pauses = scene.pauses
    for reason in ("on battery", "on battery", "outside its hours, until 18:00"):
        pauses.wish(reason)
    assert scene.reason == "outside its hours, until 18:00"
    assert "until 18:00" in pauses.resume()
    pauses.pause()
    assert "still outside its hours" in pauses.resume()
    pauses.wish("")
    pauses.wish("")
    assert scene.reason == ""
    assert scene.device.told == [GIVE_BACK_S, 0.0, GIVE_BACK_S, "resume"], "by the last of them"
    assert events_of(scene) == ["on battery", "owner", "outside its hours, until 18:00", "resumed"]
    pauses.pause()
    for reason in ("on battery", "", "on battery", ""):
        pauses.wish(reason)
    assert "owner" in scene.reason, "the schedule does not end the owner's pause"
    assert events_of(scene)[4:] == ["owner"]


def events_of(scene: Scene) -> list[str]:
    return [event.get("reason", event["event"]) for event in scene.events.events]


def test_whoever_leaves_stands_still_no_more(scene: Scene) -> None:
    scene.pauses.wish("on battery")
    scene.pauses.end()
    scene.pauses.wish("on battery")
    assert scene.pauses.pause().startswith("not paused")
    assert scene.reason == ""
    assert scene.device.told == [GIVE_BACK_S, "resume"]


def test_memory_that_others_have_is_told_once(scene: Scene) -> None:
    for taken in (True, True, False, False, True):
        scene.gate.device_taken = taken
        scene.pauses.look()
        assert ("another program" in scene.reason) is taken
    assert events_of(scene) == ["device-taken", "device-taken"]
