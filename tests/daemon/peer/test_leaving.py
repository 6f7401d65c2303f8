"""Being told to leave: while the state is still being fetched, and by signals."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom.base.events import EventList
from atom.daemon.console import Console, Silence
from atom.daemon.peer.leaving import LEAVE_S, Leaving, SharedFacts
from atom.daemon.peer.life import Life
from atom.daemon.peer.lifecycle import Ending, Facts
from atom.daemon.state_directory import StateDirectory
from atom.training.round.events import Phase
from tests.manual_clock import ManualClock


@pytest.fixture
def donors() -> SimpleNamespace:
    """As far as their end is concerned."""
    return SimpleNamespace(stop=threading.Event())


class Notes(Silence):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def life_in(
    phase: Phase,
    uncommitted: int,
    donors: SimpleNamespace,
    folder: Path,
    console: Console | None = None,
) -> Life:
    life = Life(StateDirectory(folder), console or Silence(), EventList(), ManualClock(), "")
    nothing: Any = lambda *given: None  # noqa: E731 - stands for every part that is only told
    life.parts = SimpleNamespace(  # type: ignore[assignment]
        member=SimpleNamespace(replica=SimpleNamespace(sequences=uncommitted)),
        executor=SimpleNamespace(stats=SimpleNamespace(sequences_dropped=0)),
        donors=donors,
        worker=SimpleNamespace(submit=nothing),
        pauses=SimpleNamespace(end=nothing),
        lookout=SimpleNamespace(nudge=nothing),
    )
    life._machine = SimpleNamespace(phase=phase)  # type: ignore[assignment]
    return life


def test_without_a_part_in_any_round_fetching_ends(donors: SimpleNamespace, tmp_path: Path) -> None:
    console = Notes()
    life_in(Phase.SYNCING, 0, donors, tmp_path, console).leave(None)
    assert donors.stop.is_set()
    assert console.notes == ["fetching ends here; what has arrived is kept for the next start"]


@pytest.mark.parametrize(("phase", "uncommitted"), [(Phase.SYNCING, 4), (Phase.ACCUMULATING, 0)])
def test_who_counted_may_need_what_it_fetches(
    phase: Phase, uncommitted: int, donors: SimpleNamespace, tmp_path: Path
) -> None:
    life_in(phase, uncommitted, donors, tmp_path).leave(None)
    assert not donors.stop.is_set()


def test_an_earlier_deadline_holds_and_a_later_one_does_not(
    donors: SimpleNamespace, tmp_path: Path
) -> None:
    life = life_in(Phase.ACCUMULATING, 4, donors, tmp_path)
    life.leave(100.0)
    assert life.leave(5.0) == "already leaving, now in at most 5 s"
    assert life.leave(50.0) == life.leave(None) == "already leaving, in at most 5 s"
    assert life._facts.leave_by == 5.0


def test_the_deadline_holds_while_the_last_state_is_rebuilt(
    donors: SimpleNamespace, tmp_path: Path
) -> None:
    console = Notes()
    life = life_in(Phase.SYNCING, 0, donors, tmp_path, console)
    clock, life._machine = life._clock, None
    assert isinstance(clock, ManualClock)
    commands: list[object] = []

    def submit(command: object) -> None:
        """None is ever done; after the first, its owner has the peer leave, and time goes by."""
        commands.append(command)
        if len(commands) == 1:
            life.leave(5.0)
            clock.advance(5.0)

    parts: Any = life.parts
    nothing: Any = lambda *given: None  # noqa: E731 - stands for every part that is only told
    for part in ("transport", "control", "wishes", "turns"):
        setattr(parts, part, SimpleNamespace(start=nothing, serve=nothing))
    parts.worker = SimpleNamespace(start=nothing, submit=submit)
    parts.storage = SimpleNamespace(
        journal=SimpleNamespace(head=SimpleNamespace(round=3, digest=b""))
    )
    unseen: Any = None
    assert life.live(unseen) is Ending.LEFT
    assert console.notes == ["ended at round 3: left, and nothing that was counted is lost"]


def test_who_stays_for_the_others_sake_says_so_once() -> None:
    leaving = Leaving(SharedFacts(Facts(Phase.ACCUMULATING, 0.0)), ManualClock())
    stuck = Facts(Phase.ACCUMULATING, 0.0, leave_by=60.0, others_stuck=True)
    told = [leaving.news(each) for each in (stuck, *[replace(stuck, settled_at=1.0)] * 2)]
    assert [bool(line) for line in told] == [False, True, False]


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_closed_terminal_asks_to_leave_and_insists_on_nothing(
    donors: SimpleNamespace, tmp_path: Path, asked_before: bool
) -> None:
    life = life_in(Phase.ACCUMULATING, 4, donors, tmp_path)
    if asked_before:
        life.leave(None)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with life._signals.heard():
            for asked, number in enumerate([signal.SIGHUP] * 2 + [signal.SIGTERM] * 2):
                os.kill(os.getpid(), number)
                life._obey_signals()
                assert life._facts.leave_by == (LEAVE_S if asked < 3 else 0.0)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_nohup_has_its_way(donors: SimpleNamespace, tmp_path: Path) -> None:
    life = life_in(Phase.ACCUMULATING, 4, donors, tmp_path)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with life._signals.heard():
            os.kill(os.getpid(), signal.SIGHUP)
            life._obey_signals()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert life._facts.leave_by is None
