"""The loop that looks, and what it looks at."""

import math
import os
import threading
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from atom.config.peer_file import Schedule
from atom.daemon.owner import machine_use, steward
from atom.daemon.owner.gpu import UnseenGpu
from atom.daemon.owner.machine_use import MachineUse, desktop_idle_s, idle_hint_s
from atom.daemon.owner.permit import Observations
from atom.daemon.owner.steward import Observer, Steward, wall_clock
from tests.manual_clock import ManualClock

WAIT_S = 10.0


class Used(UnseenGpu):
    def __init__(self) -> None:
        super().__init__("")
        self.user, self.asked = "game", 0

    def other_user(self) -> str:
        self.asked += 1
        return self.user


def test_it_looks_again_and_again_and_hears_new_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steward, "LOOK_S", 0.001)
    told, thrice = list[str](), threading.Event()

    def tell(reason: str) -> None:
        told.append(reason)
        if len(told) > 3:
            thrice.set()

    looking = Steward(
        Schedule(hours=("tue 01:00-02:00",)),
        lambda wishes: Observations(),
        tell,
        lambda failure: None,
        lambda: datetime(2026, 11, 16, 12),
    )
    looking.start()
    assert told[0] == "outside its hours, until Tue 01:00"
    assert thrice.wait(WAIT_S)
    looking.wish(Schedule())
    looking.close()
    assert told[-1] == ""


def test_a_look_that_fails_ends_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steward, "LOOK_S", 0.001)
    looks, failures, failed = iter([Observations()]), list[BaseException](), threading.Event()

    def fail(failure: BaseException) -> None:
        failures.append(failure)
        failed.set()

    looking = Steward(Schedule(), lambda wishes: next(looks), lambda reason: None, fail)
    looking.start()
    assert failed.wait(WAIT_S)
    looking.close()
    assert isinstance(failures[0], StopIteration)


def test_only_what_is_wished_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steward, "on_battery", lambda: True)
    gpu, clock = Used(), ManualClock(100.0)
    observer = Observer(gpu, clock)
    nothing = Schedule(pause_on_battery=False)
    assert observer.look(nothing) == Observations(gpu_idle_s=math.inf)
    assert gpu.asked == 0
    seen = observer.look(Schedule(pause_for_gpu_programs=True))
    assert (seen.on_battery, seen.gpu_idle_s, seen.gpu_user) == (True, 0.0, "game")
    gpu.user = ""
    clock.advance(7.0)
    assert observer.look(Schedule(pause_for_gpu_programs=True)).gpu_idle_s == 7.0
    assert observer.look(Schedule(idle_for="1 s")).idle_s < WAIT_S


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
    for command in ("/nowhere/loginctl", "false"):
        monkeypatch.setattr(machine_use, "_LOGINCTL", (command,))
        assert desktop_idle_s() == math.inf


def test_programs_that_are_not_ours_use_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, others_s = [1000.0], [0.0]
    monkeypatch.setattr(machine_use.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(machine_use, "_others_seconds", lambda: others_s[0])
    monkeypatch.setattr(machine_use, "_terminals_read_at_s", lambda: {})
    monkeypatch.setattr(machine_use, "desktop_idle_s", lambda: math.inf)
    use = MachineUse()
    now_s[0], others_s[0] = 1010.0, 2.9
    assert use.idle_s() == 10.0
    now_s[0], others_s[0] = 1020.0, 6.0
    assert use.idle_s() == 0.0
    now_s[0] = 1025.0
    assert use.idle_s() == 5.0


def test_another_daemon_of_ours_is_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the one that waits for its turn would never want it."""
    now_s, spent_s, others_s = [1000.0], {7: 40.0}, [900.0]
    monkeypatch.setattr(machine_use.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(machine_use, "_others_seconds", lambda: others_s[0])
    monkeypatch.setattr(machine_use, "_seconds_of", lambda pids: {n: spent_s[n] for n in pids})
    monkeypatch.setattr(machine_use, "_terminals_read_at_s", lambda: {})
    monkeypatch.setattr(machine_use, "desktop_idle_s", lambda: math.inf)
    there = [7]
    use = MachineUse(lambda: there)
    now_s[0], others_s[0], spent_s[7] = 1010.0, 909.0, 49.0
    assert use.idle_s() == 10.0
    there.append(8)
    spent_s[8] = 500.0  # it was there before it was known
    now_s[0], others_s[0] = 1020.0, 912.0
    assert use.idle_s() == 20.0
    there.clear()
    now_s[0], others_s[0] = 1030.0, 915.1
    assert use.idle_s() == 0.0


def test_what_our_own_and_a_neighbour_s_processes_took() -> None:
    assert machine_use._seconds_of([os.getpid()]) == {}, "ours is taken off already"
    seen = machine_use._seconds_of([os.getppid(), 2**30])
    assert seen[os.getppid()] >= 0.0
    assert 2**30 not in seen


def test_our_own_work_is_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    standing = psutil.cpu_times()
    monkeypatch.setattr(psutil, "cpu_times", lambda: standing)
    before, began = machine_use._others_seconds(), os.times().user
    while os.times().user - began < 0.2:
        sum(range(1000))
    assert machine_use._others_seconds() < before - 0.1, "it is taken off"


def test_a_key_in_a_terminal_whatever_the_clock_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(machine_use.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(machine_use, "_others_seconds", lambda: 0.0)
    monkeypatch.setattr(machine_use, "desktop_idle_s", lambda: math.inf)
    monkeypatch.setattr(machine_use, "DEVICES", tmp_path)

    def pressed(name: str, wall_s: float) -> None:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (wall_s, 200.0))

    (tmp_path / "pts").mkdir()
    for name in ("pts/3", "tty1"):
        pressed(name, 9e9)  # an hour ago by a clock that was ahead
    use = MachineUse()
    now_s[0] = 1030.0
    assert use.idle_s() == 30.0
    pressed("pts/ptmx", 5000.0)
    assert use.idle_s() == 30.0, "that is no terminal"
    pressed("pts/3", 5000.0)
    assert use.idle_s() == 0.0
    now_s[0] = 1050.0
    assert use.idle_s() == 20.0
    pressed("pts/4", 4000.0)
    assert use.idle_s() == 0.0, "somebody logged in"
    (tmp_path / "pts/4").unlink()
    now_s[0] = 1060.0
    assert use.idle_s() == 10.0


def test_the_clock_on_the_wall_follows_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    east = wall_clock()
    monkeypatch.setenv("TZ", "America/New_York")
    west = wall_clock()
    assert east.tzinfo is None
    assert (east - west).total_seconds() > 9 * 3600
    monkeypatch.undo()
    wall_clock()
