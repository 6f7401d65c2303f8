"""May this box work now: wishes against what is seen, and the loop that looks."""

import json
import math
import threading
from datetime import datetime
from pathlib import Path

import pytest

from atom.config.peer_file import PeerFile, Schedule
from atom.daemon.owner import wishes
from atom.daemon.owner.wishes import (
    OwnersWishes,
    idle_hint_s,
    on_battery,
    sessions_idle_s,
    wall_clock,
    why_not,
)

WAIT_S = 10.0


NOON = datetime(2026, 11, 16, 12)  # a Monday


def schedule(**keys: object) -> Schedule:
    return Schedule.model_validate_json(json.dumps(keys))


BUSY = True, 0.0
QUIET = False, math.inf


@pytest.mark.parametrize(
    ("given", "seen", "said"),
    [
        ({}, QUIET, None),
        ({}, BUSY, "on battery"),
        ({"pause_on_battery": False}, BUSY, None),
        ({"hours": ["daily 18:00-08:00"]}, QUIET, "outside its hours, until 18:00"),
        ({"hours": ["tue 18:00-19:00"]}, QUIET, "outside its hours, until Tue 18:00"),
        ({"hours": ["mon 08:00-18:00"]}, QUIET, None),
        ({"hours": ["mon 18:00-19:00"]}, BUSY, "outside its hours, until 18:00"),
        ({"idle_for": "10 min"}, (False, 599.0), "idle for less than 10 min"),
        ({"idle_for": "10 min"}, (False, 600.0), None),
        ({"idle_for": "10 min"}, BUSY, "on battery"),
    ],
)
def test_what_is_said(given: dict[str, object], seen: tuple[bool, float], said: str | None) -> None:
    refusal = why_not(NOON, schedule(**given), *seen)
    assert refusal.endswith(said or "")
    assert bool(refusal) == (said is not None)


def test_a_look_that_fails_ends_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "LOOK_S", 0.001)
    looks, failures, failed = iter([False]), list[BaseException](), threading.Event()
    monkeypatch.setattr(wishes, "on_battery", lambda: next(looks))

    def fail(failure: BaseException) -> None:
        failures.append(failure)
        failed.set()

    looking = OwnersWishes(PeerFile(), lambda reason: None, fail)
    looking.keep_looking()
    assert failed.wait(WAIT_S)
    looking.close()
    assert isinstance(failures[0], StopIteration)


def test_only_what_is_wished_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr(wishes, "on_battery", lambda: asked.append("battery"))
    monkeypatch.setattr(wishes, "sessions_idle_s", lambda: asked.append("idle") or 9.0)
    for keys, looked_at in (
        (Schedule(pause_on_battery=False), []),
        (Schedule(), ["battery"]),
        (Schedule(idle_for="1 s"), ["battery", "idle"]),
    ):
        OwnersWishes(PeerFile(schedule=keys), str, repr).look()
        assert asked == looked_at
        asked.clear()


@pytest.mark.parametrize(
    ("said", "idle_s"),
    [
        ("IdleHint=no\nIdleSinceHintMonotonic=0\n", 0.0),
        ("IdleHint=yes\nIdleSinceHintMonotonic=40000000\n", 60.0),
        ("IdleHint=yes\nIdleSinceHintMonotonic=0\n", math.inf),
        ("IdleHint=yes\nIdleSinceHintMonotonic=soon\n", math.inf),
        ("", math.inf),
    ],
)
def test_what_a_desktop_tells(said: str, idle_s: float) -> None:
    assert idle_hint_s(said, 100.0) == idle_s


def test_without_logind_the_desktop_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "_LOGINCTL", ("/nowhere/loginctl",))
    assert sessions_idle_s() == math.inf


def test_a_change_holds_at_once_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "on_battery", lambda: True)
    monkeypatch.setattr(wishes, "sessions_idle_s", lambda: 9.0)
    told = list[str]()
    held = OwnersWishes(PeerFile(), told.append, lambda failure: None)
    held.keep_looking()
    assert told[-1] == "on battery"
    wished = {"idle_for": "9 s", "pause_on_battery": False}
    held.change(PeerFile(schedule=Schedule.model_validate(wished)))
    assert told[-1] == ""
    held.close()
    told.clear()
    held.change(PeerFile())
    assert told == [], "it has ended"


def test_the_clock_on_the_wall_follows_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    east = wall_clock()
    monkeypatch.setenv("TZ", "America/New_York")
    west = wall_clock()
    assert east.tzinfo is None
    assert (east - west).total_seconds() > 9 * 3600
    monkeypatch.undo()
    wall_clock()


Supplies = dict[str, dict[str, str]]
BATTERY = {"type": "Battery", "status": "Discharging"}
FULL = {"type": "Battery", "status": "Full"}
PLUG, NO_PLUG = {"type": "Mains", "online": "1"}, {"type": "Mains", "online": "0"}
MOUSE = {**BATTERY, "scope": "Device", "online": "1"}


@pytest.mark.parametrize(
    ("supplies", "on"),
    [
        ({}, False),
        ({"BAT0": BATTERY, "ADP1": NO_PLUG}, True),
        ({"BAT0": BATTERY, "ADP1": PLUG}, False),
        ({"BAT0": BATTERY, "ucsi": {"type": "USB", "online": "1"}}, False),
        ({"BAT0": FULL, "ADP1": NO_PLUG}, False),
        ({"BAT0": FULL, "BAT1": {**BATTERY, "online": "1"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Not charging"}}, False),
        ({"ups": {"type": "UPS", "status": "Discharging"}}, True),
        ({"hidpp_battery_0": MOUSE}, False),
        ({"hidpp_battery_0": MOUSE, "BAT0": BATTERY}, True),
        ({"odd": {}}, False),
    ],
)
def test_only_its_own_battery_counts(supplies: Supplies, on: bool, tmp_path: Path) -> None:
    for name, said in supplies.items():
        (tmp_path / name).mkdir()
        for key, value in said.items():
            (tmp_path / name / key).write_text(f"{value}\n")
    assert on_battery(tmp_path) is on


def test_where_the_kernel_says_nothing_nobody_stands_still(tmp_path: Path) -> None:
    assert not on_battery(tmp_path / "absent")
    (tmp_path / "BAT0" / "status").mkdir(parents=True)  # any file that cannot be read
    assert not on_battery(tmp_path)
