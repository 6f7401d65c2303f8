"""Daemons' parts in the turns, over a real board: who gives the device, who takes it, when."""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.base.events import EventList
from atom.config.peer_file import Device
from atom.daemon.turns import taking
from atom.daemon.turns.board import Wish
from atom.daemon.turns.board_file import BoardFile
from atom.daemon.turns.opening import device_name, open_turns
from atom.daemon.turns.taking import IDLE_S, UNREADABLE_S, Contender, DeviceTurns, run_key
from tests.manual_clock import ManualClock

SLOT_S = 100.0


@dataclass
class SmallSeat:
    """Notes whether the device is its own; `busy`: a pass still needs it."""

    has_it: bool = True
    busy: bool = False
    holder: str = ""

    paused: bool = False

    def give_device(self, holder: str) -> bool:
        self.has_it, self.holder, self.paused = self.busy, holder, True
        return not self.busy

    def take_device(self) -> None:
        self.has_it, self.paused = True, False


@dataclass
class Daemon:
    turns: DeviceTurns
    seat: SmallSeat = field(default_factory=SmallSeat)
    events: EventList = field(default_factory=EventList)
    failures: list[BaseException] = field(default_factory=list)
    wish: Wish = Wish.TRAINING
    bug: Exception | None = None

    def serve(self) -> None:
        self.turns.serve(self.seat, self, self.events)

    def turn_wish(self) -> Wish:
        if self.bug is not None:
            raise self.bug
        return self.wish

    def counted(self) -> int:
        return 12

    def fail(self, failure: BaseException) -> None:
        self.failures.append(failure)

    @property
    def told(self) -> list[str]:
        return [event["event"] for event in self.events.events]


class Box:
    """Daemons whose threads never run by themselves: the test looks for them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock(1000.0)
        self.daemons: list[Daemon] = []

    def daemon(self, run: str, share: float = 1.0) -> Daemon:
        who = Contender(run_key(run, "owner"), f"/state/{run}", "cpu")
        file = BoardFile(self.folder, f"m{len(self.daemons)}", "boot")
        terms = Device.model_validate({"share": share, "slot": f"{SLOT_S} s"})
        self.daemons.append(Daemon(DeviceTurns(file, who, terms, self.clock)))
        return self.daemons[-1]

    def set_up(self, run: str, share: float = 1.0) -> Daemon:
        daemon = self.daemon(run, share)
        daemon.turns.look()
        daemon.serve()
        self.look()
        return daemon

    def look(self, seconds: float = 0.5) -> None:
        self.clock.advance(seconds)
        for daemon in self.daemons:
            assert daemon.turns.look()
        assert sum(daemon.seat.has_it for daemon in self.daemons) <= 1

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.turns.close()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    box.close()


def test_the_first_is_alone_and_the_second_waits_for_the_round(box: Box) -> None:
    one = box.set_up("one")
    assert one.seat.has_it
    assert one.told == []
    two = box.daemon("two")
    two.turns.look()
    box.clock.advance(1.0)
    one.turns.look()
    assert one.seat.has_it, "its round goes on"
    one.turns.end_of_round()
    assert not one.seat.has_it
    assert one.told == ["turn-ended"]
    (ended,) = one.events.events
    assert ended == {"event": "turn-ended", "seconds": 1.5, "with_round": True, "mini_batches": 12}
    two.turns.look()
    two.serve()
    box.look()
    assert two.seat.has_it
    assert one.seat.holder == "the run two"


def test_they_hand_it_to_each_other(box: Box) -> None:
    one, two = box.set_up("one"), box.daemon("two")
    two.turns.look()
    one.turns.end_of_round()
    two.turns.look()
    two.serve()
    box.look(SLOT_S + 1)
    two.turns.end_of_round()
    box.look()
    assert one.seat.has_it
    assert one.told == ["turn-ended", "turn-began"]
    rows = {row["run"]: row for row in one.turns.figures()["runs"]}
    assert rows["one"]["turn"] == "has the device"
    assert rows["two"]["turn"] == "waits"
    assert rows["one"]["left_s"] == pytest.approx(SLOT_S, abs=2.0)
    assert rows["two"]["last_hour_s"] == pytest.approx(30.0, abs=1.0), "nobody looked for longer"
    two.turns.retune(Device.model_validate({"share": 3}))
    box.look()
    shown = {row["run"]: row["share"] for row in one.turns.figures()["runs"]}
    assert shown == {"one": 1.0, "two": 3.0}


def test_a_pass_under_way_keeps_the_device_until_it_ends(box: Box) -> None:
    one, two = box.set_up("one"), box.daemon("two")
    two.turns.look()
    one.seat.busy = True
    box.clock.advance(SLOT_S + 1)
    for _ in range(3):
        one.turns.look()
        two.turns.look()
        assert two.turns.figures()["runs"][0]["turn"] == "has the device"
    one.seat.busy = False
    one.turns.look()
    two.turns.look()
    assert [row["turn"] for row in two.turns.figures()["runs"]] == ["waits", "has the device"]


def test_who_should_give_the_device_and_need_not_any_more_goes_on(box: Box) -> None:
    one, two = box.set_up("one"), box.daemon("two")
    two.turns.look()
    one.seat.busy = True
    box.clock.advance(SLOT_S + 1)
    one.turns.look()
    assert one.seat.paused, "it is to give it, as soon as its pass ends"
    two.turns.close()
    one.turns.look()
    assert not one.seat.paused
    assert one.told == [], "it had it all the time"


def test_idleness_is_waited_for_before_others_get_the_device(box: Box) -> None:
    one, two = box.set_up("one"), box.daemon("two")
    two.turns.look()
    one.turns.end_of_round()
    two.turns.look()
    two.serve()
    two.wish = Wish.NOTHING
    box.look()
    assert two.seat.has_it
    box.look(IDLE_S + 1)
    box.look()
    assert one.seat.has_it


def test_the_device_of_who_ends_is_free(box: Box) -> None:
    one, two = box.set_up("one"), box.daemon("two")
    two.turns.look()
    one.turns.close()
    assert not one.seat.has_it
    two.turns.look()
    assert [row["turn"] for row in two.turns.figures()["runs"]] == ["has the device"]


def test_a_board_that_cannot_be_read_keeps_nobody_waiting(box: Box) -> None:
    one, two = box.set_up("one"), box.daemon("two")
    two.turns.look()
    one.turns.end_of_round()
    two.turns.look()
    two.serve()
    with (box.folder / "board.lock").open("a+") as stuck:
        fcntl.flock(stuck, fcntl.LOCK_EX)
        box.clock.advance(8 * 3600.0)
        assert not one.turns.look()
        assert not one.seat.has_it, "the machine slept, and somebody else looks just now"
        box.clock.advance(UNREADABLE_S - 1)
        assert not one.turns.look()
        assert not one.seat.has_it
        box.clock.advance(2)
        assert not one.turns.look()
        assert one.seat.has_it
    assert one.told[1:] == ["turns-unreadable", "turn-began"]
    one.turns.look()
    assert not one.seat.has_it, "it is somebody else's turn, as can be read now"


def test_a_board_that_cannot_be_read_takes_the_device_from_nobody(box: Box) -> None:
    one, two = box.set_up("one"), box.daemon("two")
    two.turns.look()
    one.seat.busy = True
    box.clock.advance(SLOT_S + 1)
    one.turns.look()
    with (box.folder / "board.lock").open("a+") as stuck:
        fcntl.flock(stuck, fcntl.LOCK_EX)
        one.turns.look()
        assert one.seat.paused
        box.clock.advance(UNREADABLE_S)
        one.turns.look()
        assert not one.seat.paused
    assert one.told == ["turns-unreadable"]


@pytest.fixture
def gone(box: Box, monkeypatch: pytest.MonkeyPatch) -> BoardFile:
    """The place of a daemon whose directory was deleted: the next one that begins has it, too."""
    monkeypatch.setattr(taking, "PLACE_S", 0.0)
    monkeypatch.setattr(taking, "PLACE_TRIES", 3)
    place = BoardFile(box.folder, "m0", "boot")
    place.enter()
    return place


def test_the_daemon_of_a_deleted_directory_is_waited_for_in_words(
    box: Box, gone: BoardFile
) -> None:
    notes: list[str] = []

    with pytest.raises(StorageError, match=f"process {os.getpid()} .* does not end") as refused:
        box.daemon("one").turns.begin(notes.append)
    assert f"kill {os.getpid()}" in refused.value.hint
    assert [note.endswith("waiting for its end") for note in notes] == [True]

    def end_it(note: str) -> None:
        notes.append(note)
        gone.leave()

    box.daemons.pop().turns.close()
    again = box.daemon("one")
    again.turns.begin(end_it)
    again.serve()
    box.look()
    assert again.seat.has_it
    assert len(notes) == 2


def test_a_daemon_that_did_not_write_down_its_number_is_waited_for_as_well(
    box: Box, gone: BoardFile
) -> None:
    """As where the disk was full."""
    os.truncate(box.folder / "m0.alive", 0)
    notes: list[str] = []
    with pytest.raises(StorageError, match=r"^another process still runs") as refused:
        box.daemon("one").turns.begin(notes.append)
    assert "kill" not in refused.value.hint
    assert len(notes) == 1, "not once for each look"
    gone.leave()


def test_a_home_that_cannot_be_written_is_no_reason_to_wait(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    daemon = Box(tmp_path / "file").daemon("one")
    notes: list[str] = []
    daemon.turns.begin(notes.append)
    daemon.turns.close()
    assert "no turns are taken" in notes[0]


def test_a_look_that_fails_ends_the_daemon(box: Box) -> None:
    one = box.daemon("one")
    one.turns.begin(lambda note: None)
    one.bug = RuntimeError("a bug")
    one.serve()
    one.turns._thread.join(10.0)
    assert one.failures == [one.bug]
    one.bug = None


def test_the_board_is_the_machine_s_and_the_device_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    turns = open_turns(Device(kind="cpu"), tmp_path / "state", "run", "owner", ManualClock())
    turns.begin(lambda note: None)
    assert turns.figures()["device"] == "cpu"
    (board,) = (tmp_path / "atom" / "turns").glob("*/cpu/board.json")
    assert "run/owner" in board.read_text()
    turns.close()
    assert device_name("cuda:99") == "cpu", "what is not there is refused elsewhere"
