"""Daemons' parts in the turns, over real claims: who gives the device, who takes it, when."""

import fcntl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from atom.config.peer_file import Device
from atom.extras.turns.claims import HAS_IT, WAITS, Claim
from atom.extras.turns.taking import IDLE_S, UNREADABLE_S, DeviceTurns, device_names, open_turns
from tests.event_list import EventList
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
    wants: bool = True
    bug: Exception | None = None
    is_served: bool = False

    def serve(self) -> None:
        self.is_served = True
        self.turns.serve(self.seat, self, self.events)

    def wants_device(self) -> bool:
        if self.bug is not None:
            raise self.bug
        return self.wants

    def counted(self) -> int:
        return 12

    def fail(self, failure: BaseException) -> None:
        self.failures.append(failure)

    @property
    def told(self) -> list[str]:
        return [event["event"] for event in self.events.events]

    @property
    def shown(self) -> list[str]:
        return [row["turn"] for row in self.turns.figures()["runs"]]


class Box:
    """Daemons whose threads never run by themselves: the test looks for them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock(1000.0)
        self.daemons: list[Daemon] = []

    def daemon(self, run: str, devices: tuple[str, ...] = ("cpu",)) -> Daemon:
        claim = Claim(f"{run}/owner", f"/state/{run}", SLOT_S, WAITS, self.clock.now(), devices)
        self.daemons.append(Daemon(DeviceTurns(self.folder, claim, self.clock)))
        self.daemons[-1].turns.look()
        return self.daemons[-1]

    def pair(self) -> tuple[Daemon, Daemon]:
        """The first has the device, the second waits for it."""
        one = self.daemon("one")
        one.serve()
        self.clock.advance(1.0)
        two = self.daemon("two")
        one.turns.look()
        assert one.seat.has_it
        return one, two

    def handed_over(self) -> tuple[Daemon, Daemon]:
        """The second has it, the first waits."""
        one, two = self.pair()
        self.clock.advance(SLOT_S)
        one.turns.end_of_round()
        two.turns.look()
        two.serve()
        one.turns.look()
        assert (one.seat.has_it, two.seat.has_it) == (False, True)
        return one, two

    def look(self, seconds: float = 0.5) -> None:
        self.clock.advance(seconds)
        for daemon in self.daemons:
            daemon.turns.look()
        assert sum(each.seat.has_it for each in self.daemons if each.is_served) <= 1

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.turns.close()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    box.close()


def test_the_first_keeps_it_for_a_slot_and_gives_it_when_a_round_ends(box: Box) -> None:
    one, two = box.pair()
    one.turns.end_of_round()
    assert one.seat.has_it, "its slot is not over"
    box.clock.advance(SLOT_S)
    one.turns.look()
    assert one.seat.has_it, "its round goes on"
    one.turns.end_of_round()
    assert not one.seat.has_it
    assert one.seat.holder == "the run two"
    (ended,) = one.events.events
    assert ended == {
        "event": "turn-ended", "seconds": SLOT_S + 1, "with_round": True, "sequences": 12,
    }  # fmt: skip
    two.turns.look()
    two.serve()
    box.look()
    assert two.seat.has_it


def test_they_hand_it_to_each_other(box: Box) -> None:
    one, two = box.handed_over()
    box.clock.advance(SLOT_S)
    two.turns.end_of_round()
    box.look()
    assert one.seat.has_it
    assert (one.told, two.told) == (["turn-ended", "turn-began"], ["turn-ended"])
    two.turns.look()
    rows = {row["run"]: row for row in two.turns.figures()["runs"]}
    assert (rows["one"]["turn"], rows["two"]["turn"]) == ("has the device", "waits")
    assert rows["two"]["since_s"] == 0.5
    two.turns.retune(Device.model_validate({"slot": "1 s"}))
    box.look(2.0)
    assert not one.seat.has_it, "the shortest slot holds for all"


def test_who_should_give_the_device_and_need_not_any_more_goes_on(box: Box) -> None:
    one, two = box.pair()
    one.seat.busy = True
    box.clock.advance(2 * SLOT_S)
    one.turns.look()
    two.turns.look()
    assert two.shown == ["has the device", "waits"]
    assert one.seat.paused, "it is to give it, as soon as its pass ends"
    two.turns.close()
    one.turns.look()
    assert not one.seat.paused
    assert one.told == [], "it had it all the time"


def test_idleness_is_waited_for_before_others_get_the_device(box: Box) -> None:
    one, two = box.handed_over()
    two.wants = False
    box.look()
    assert two.seat.has_it
    box.look(IDLE_S)
    box.look()
    assert one.seat.has_it
    assert two.shown == ["has the device", "not now"]


def test_claims_that_cannot_be_read_keep_nobody_waiting(box: Box) -> None:
    one, two = box.handed_over()
    notes: list[str] = []
    one.turns._note = notes.append
    with (box.folder / "claims.lock").open("a+") as stuck:
        fcntl.flock(stuck, fcntl.LOCK_EX)
        box.clock.advance(8 * 3600.0)
        one.turns.look()
        assert not one.seat.has_it, "the machine slept, and somebody else looks just now"
        box.clock.advance(UNREADABLE_S - 1)
        one.turns.look()
        assert not one.seat.has_it
        box.clock.advance(2)
        one.turns.look()
        assert one.seat.has_it
    assert ["no turns are taken" in note for note in notes] == [True]
    assert one.told[1:] == ["turn-began"]
    one.turns.look()
    assert not one.seat.has_it, "it is somebody else's turn, as can be read now"
    assert two.seat.has_it


def test_devices_of_one_daemon_come_and_go_together(box: Box) -> None:
    one, other = box.daemon("one", ("GPU-0",)), box.daemon("other", ("GPU-1",))
    both = box.daemon("both", ("GPU-0", "GPU-1"))
    for each in (one, other):
        each.serve()
    assert (one.seat.has_it, other.seat.has_it) == (True, True), "they have none in common"
    assert both.shown.count(HAS_IT) == 2
    box.clock.advance(SLOT_S)
    one.turns.end_of_round()
    both.turns.look()
    one.turns.look()
    assert not one.seat.has_it, "who waits longer is next, though one of its devices is in use"
    other.turns.end_of_round()
    both.turns.look()
    both.serve()
    assert (one.seat.has_it, other.seat.has_it, both.seat.has_it) == (False, False, True)


def test_a_home_that_cannot_be_written_is_no_reason_to_wait(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    claim = Claim("one/a", "/one", SLOT_S, WAITS, 0.0, ("cpu",))
    turns = DeviceTurns(tmp_path / "file" / "turns", claim, ManualClock())
    notes: list[str] = []
    turns.begin(notes.append)
    turns.close()
    assert "no turns are taken" in notes[0]


def test_a_look_that_fails_ends_the_daemon(box: Box) -> None:
    one = box.daemon("one")
    one.turns.begin(lambda note: None)
    one.bug = RuntimeError("a bug")
    one.serve()
    one.turns._thread.join(10.0)
    assert one.failures == [one.bug]
    one.bug = None


def test_the_claims_are_the_machine_s_and_the_device_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    turns = open_turns(
        Device(use=("cpu", "cpu")), tmp_path / "state", "run", "owner", ManualClock()
    )
    turns.begin(lambda note: None)
    assert turns.figures()["device"] == "cpu"
    (claim,) = (tmp_path / "atom" / "turns").glob("*/*.claim")
    assert "run/owner" in claim.read_text()
    turns.close()
    assert device_names(["cuda:99"]) == ("cpu",), "what is not there is refused elsewhere"
