"""Bytes of a line by calendar day, kept over restarts, and the monthly allowance."""

from datetime import datetime
from pathlib import Path

import pytest

from atom.daemon.owner.traffic import (
    MOST_DAYS,
    WRITTEN_EVERY_S,
    Traffic,
    TrafficCounter,
    kept_traffic,
    most_round_bytes,
)
from atom.training.storage.disk import DiskRoom
from tests.event_list import EventList
from tests.manual_clock import ManualClock

FRIDAY = datetime(2026, 11, 27, 23, 59)


class Box:
    """One line, one calendar, one disk."""

    def __init__(self, root: Path) -> None:
        self.path, self.carried = root / "traffic.json", 0
        self.wall, self.clock = FRIDAY, ManualClock()
        self.room = DiskRoom(root, EventList())
        self.start()

    def start(self) -> None:
        """Another process: it has carried nothing yet."""
        self.carried = 0
        self.counter = TrafficCounter(
            self.path, lambda: self.carried, self.clock, lambda: self.wall
        )

    def carry(self, count: int) -> Traffic:
        self.carried += count
        return self.counter.count(None, 0, self.room)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def used(traffic: Traffic) -> tuple[int, int]:
    return traffic.today_bytes, traffic.month_bytes


def test_bytes_count_for_their_day_and_month(box: Box) -> None:
    assert used(box.carry(100)) == (100, 100)
    box.wall = datetime(2026, 11, 28, 0, 1)
    assert used(box.carry(0)) == (0, 100)
    assert used(box.carry(30)) == (30, 130)
    box.wall = datetime(2026, 12, 1, 0, 0)
    assert used(box.carry(7)) == (7, 7)


def test_they_survive_a_restart_and_a_kill_takes_only_the_last_seconds(box: Box) -> None:
    box.carry(100)  # written at once
    box.clock.advance(WRITTEN_EVERY_S - 1)
    box.carry(20)
    box.start()
    assert used(box.carry(0)) == (100, 100), "killed"
    box.carry(20)
    box.counter.write(box.room)
    box.start()
    assert used(box.carry(1)) == (121, 121)


def test_a_clock_that_was_wrong_takes_nothing_from_this_month(box: Box) -> None:
    box.carry(100)
    for wrong in (datetime(1970, 1, 1), datetime(2031, 1, 1)):
        box.wall = wrong
        assert used(box.carry(5)) == (5, 5)
    box.wall = FRIDAY
    assert used(box.carry(5)) == (105, 105)


def test_two_months_are_kept_and_no_more() -> None:
    traffic = Traffic(FRIDAY)
    for month in (9, 10, 11):
        for day in range(1, 31):
            traffic = Traffic(datetime(2026, month, day), traffic.days).plus(1)
    assert len(traffic.days) == MOST_DAYS
    assert min(traffic.days) == "2026-09-29"


@pytest.mark.parametrize(
    "written",
    [
        b"", b"{", b"[]", b"3", b"\xff", b'{"days": 3}', b'{"days": {"2026-11-27": "x"}}',
        b'{"days": {"2026-11-27": 5}, "round_bytes": []}',
        b"[" * 70_000,
    ],
)  # fmt: skip
def test_a_damaged_file_begins_anew(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "traffic.json").write_bytes(written)
    assert kept_traffic(tmp_path / "traffic.json", FRIDAY) == Traffic(FRIDAY)


def test_a_full_disk_keeps_nobody_from_training(box: Box) -> None:
    box.path.mkdir()
    assert used(box.carry(100)) == (100, 100)
    assert box.room.paused.keys() == {"traffic"}


# ---- the allowance


@pytest.mark.parametrize(
    ("per_month", "carried", "why_not"),
    [
        (None, 10**15, ""),
        (10_240, 0, ""),
        (10_240, 8191, ""),
        (10_240, 8192, "10.2 kB a month ([network] per_month) is used up until 01 December 2026"),
        (2048, 0, "2.0 kB a month ([network] per_month) is less than two rounds need: 2.0 kB"),
    ],
)  # fmt: skip
def test_two_rounds_before_its_end_a_peer_goes(
    per_month: int | None, carried: int, why_not: str
) -> None:
    traffic = Traffic(FRIDAY, {"2026-11-03": carried, "2026-10-31": 10**12}, 1024, per_month)
    assert traffic.why_not.removeprefix("the allowance of ") == why_not


@pytest.mark.parametrize(
    ("carried", "members", "expected"),
    [(0, 0, 40), (30, 3, 40), (55, 3, 55), (10**9, 3, 60), (10**9, 1, 40)],
)
def test_a_state_that_was_served_is_no_rounds(carried: int, members: int, expected: int) -> None:
    """Served states must not count: a small allowance would then seem too small for two rounds
    forever, because a peer that does not start measures nothing new."""
    assert most_round_bytes(carried, members, 10) == expected


def test_the_next_month_has_its_own() -> None:
    spent = Traffic(FRIDAY, {"2026-11-03": 9000}, 1024, 10_000)
    assert spent.why_not
    assert spent.next_month == datetime(2026, 12, 1)
    assert not Traffic(spent.next_month, spent.days, 1024, 10_000).why_not
    assert Traffic(datetime(2026, 12, 31)).next_month == datetime(2027, 1, 1)
