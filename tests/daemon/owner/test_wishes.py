"""May this box work now: wishes against what is seen, and the loop that looks."""

import json
import math
import threading
from datetime import datetime

import pytest

from atom.config.peer_file import PeerFile, Schedule
from atom.daemon.owner import machine, wishes
from atom.daemon.owner.machine import idle_hint_s, sessions_idle_s
from atom.daemon.owner.wishes import (
    Observations,
    OwnersWishes,
    wall_clock,
    why_not,
)

WAIT_S = 10.0


NOON = datetime(2026, 11, 16, 12)  # a Monday


def schedule(**keys: object) -> Schedule:
    return Schedule.model_validate_json(json.dumps(keys))


BUSY = Observations(on_battery=True, idle_s=0.0)
QUIET = Observations()


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
        ({"idle_for": "10 min"}, Observations(idle_s=599.0), "idle for less than 10 min"),
        ({"idle_for": "10 min"}, Observations(idle_s=600.0), None),
        ({"idle_for": "10 min"}, BUSY, "on battery"),
    ],
)
def test_what_is_said(given: dict[str, object], seen: Observations, said: str | None) -> None:
    refusal = why_not(NOON, schedule(**given), seen)
    assert refusal.endswith(said or "")
    assert bool(refusal) == (said is not None)


def test_it_looks_again_and_again_and_hears_new_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "LOOK_S", 0.001)
    monkeypatch.setattr(wishes, "on_battery", lambda: False)
    told, thrice = list[str](), threading.Event()

    def tell(reason: str) -> None:
        told.append(reason)
        if len(told) > 3:
            thrice.set()

    looking = OwnersWishes(
        PeerFile(schedule=Schedule(hours=("tue 01:00-02:00",))),
        tell,
        lambda failure: None,
        lambda: NOON,
    )
    looking.keep_looking()
    assert told[0] == "outside its hours, until Tue 01:00"
    assert thrice.wait(WAIT_S)
    looking.change(PeerFile())
    looking.close()
    assert told[-1] == ""


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
    monkeypatch.setattr(wishes, "on_battery", lambda: True)
    observer = OwnersWishes(PeerFile(), str, repr)
    nothing = Schedule(pause_on_battery=False)
    assert observer.seen(nothing) == Observations()
    assert observer.seen(Schedule()).on_battery
    monkeypatch.setattr(wishes, "sessions_idle_s", lambda: 9.0)
    assert observer.seen(Schedule(idle_for="1 s")).idle_s == 9.0
    assert observer.seen(nothing).idle_s == math.inf


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
    monkeypatch.setattr(machine, "_LOGINCTL", ("/nowhere/loginctl",))
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
