"""Hours of the week: parsing, whether they hold, and when they next begin."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from atom.config.hours import DAYS, Window, next_opening, parse_window

MONDAY = datetime(2026, 11, 16)


def at(day: str, time: str) -> datetime:
    hours, minutes = map(int, time.split(":"))
    return MONDAY + timedelta(days=DAYS.index(day), hours=hours, minutes=minutes)


@pytest.mark.parametrize(
    ("text", "days", "start_min", "length_min"),
    [
        ("mon-fri 18:00-08:00", {0, 1, 2, 3, 4}, 1080, 840),
        ("  SAT,sun   0:00 - 24:00 ", {5, 6}, 0, 1440),
        ("fri-mon 09:30-17:45", {4, 5, 6, 0}, 570, 495),
        ("daily 22:00-00:00", set(range(7)), 1320, 120),
        ("tue-tue 01:00-02:00", {1}, 60, 60),
    ],
)
def test_what_people_write(text: str, days: set[int], start_min: int, length_min: int) -> None:
    starts = frozenset(1440 * day + start_min for day in days)
    assert parse_window(text) == Window(starts, length_min)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("18:00-08:00", "not a weekly time"),
        ("mon 18-08", "not a weekly time"),
        ("", "not a weekly time"),
        ("mo 18:00-20:00", "mo is not one of the days mon, tue"),
        ("mon 25:00-26:00", "there is no 25:00"),
        ("mon 12:60-13:00", "there is no 12:60"),
        ("mon 24:00-08:00", "begins at 24:00"),
        ("mon 08:00-08:00", "ends when it begins"),
    ],
)
def test_what_is_refused(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_window(text)


@pytest.mark.parametrize(
    ("text", "now", "opens"),
    [
        ("mon-fri 18:00-08:00", at("mon", "17:59"), at("mon", "18:00")),
        ("mon-fri 18:00-08:00", at("mon", "07:59"), at("mon", "18:00")),  # Sunday is not in mon-fri
        ("mon-fri 18:00-08:00", at("tue", "07:59"), None),
        ("mon-fri 18:00-08:00", at("tue", "08:00"), at("tue", "18:00")),
        ("mon-fri 18:00-08:00", at("sat", "08:00"), at("sun", "18:00") + timedelta(days=1)),
        ("sat,sun 00:00-24:00", at("sun", "23:59"), None),
        ("sat,sun 00:00-24:00", at("mon", "00:00"), at("sat", "00:00")),
        ("sun 22:00-06:00", at("mon", "05:59"), None),
        ("mon 10:00-11:00", at("mon", "11:00"), at("mon", "10:00") + timedelta(days=7)),
    ],
)
def test_when_they_hold(text: str, now: datetime, opens: datetime | None) -> None:
    assert next_opening([parse_window(text)], now) == opens


def test_without_any_they_always_hold_and_of_several_the_next_counts() -> None:
    assert next_opening([], at("wed", "03:00")) is None
    both = [parse_window("fri 10:00-11:00"), parse_window("thu 09:00-10:00")]
    assert next_opening(both, at("wed", "03:00")) == at("thu", "09:00")


@pytest.mark.parametrize("change", [datetime(2026, 3, 29), datetime(2026, 10, 25)])
def test_summer_time_comes_and_goes_by_the_clock_on_the_wall(change: datetime) -> None:
    """The window is an hour shorter or longer in real time, but its wall-clock borders stay."""
    window, berlin = parse_window("sat 22:00-06:00"), ZoneInfo("Europe/Berlin")
    began = change.replace(tzinfo=berlin).astimezone(ZoneInfo("UTC")) - timedelta(hours=6)
    held = []
    for half_hours in range(48):
        moment = (began + timedelta(minutes=30 * half_hours)).astimezone(berlin)
        if window.holds(moment.replace(tzinfo=None)):
            held.append(moment)
    assert f"{held[0]:%a %H:%M}" == "Sat 22:00"
    assert f"{held[-1]:%a %H:%M}" == "Sun 05:30"
    assert len(held) == (14 if change.month == 3 else 18)
