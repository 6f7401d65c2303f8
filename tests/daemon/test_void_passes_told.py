"""What a daemon says of passes that count for nothing."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom.base.clock import ManualClock
from atom.base.events import EventList
from atom.daemon.console import Silence
from atom.daemon.life import Life
from atom.daemon.state_directory import StateDirectory
from atom.swap.voided import Cause, PassVoided
from atom.training.pass_watch import PassWatch
from atom.training.void_passes import VoidPasses, worth_saying


class Listener(Silence):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Hands:
    """As far as void passes are concerned."""

    def __init__(self) -> None:
        self.tally = SimpleNamespace(void=VoidPasses())

    def voided(self, void: PassVoided) -> bool:
        return worth_saying(self.tally.void.add(void))


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def life(listener: Listener, tmp_path: Path) -> Life:
    life = Life(StateDirectory(tmp_path), listener, EventList(), ManualClock(), "")
    member: Any = SimpleNamespace(
        manifest=SimpleNamespace(run="tiny"),
        replica=SimpleNamespace(watch=PassWatch(ManualClock())),
    )
    life.parts = SimpleNamespace(  # type: ignore[assignment]
        hands=Hands(), member=member, lookout=SimpleNamespace(nudge=lambda: None)
    )
    return life


def test_a_void_pass_is_said_with_its_hint(life: Life, listener: Listener) -> None:
    life.on_void(PassVoided(Cause.MEMORY, "no room", hint="at most 4 per pass from now on"))
    assert listener.notes == [
        "the pass is void, out-of-memory: no room; at most 4 per pass from now on"
    ]


def test_of_many_in_a_row_few_are_said_until_one_is_sound(life: Life, listener: Listener) -> None:
    void = PassVoided(Cause.GRADIENTS, "though the loss is finite")
    for _ in range(7):
        life.on_void(void)
    assert len(listener.notes) == 3, "the 1st, 2nd and 4th"
    life.on_pass()
    life.on_void(void)
    assert len(listener.notes) == 4


def test_a_trace_is_there_when_the_pass_has_ended(life: Life) -> None:
    watch = life.parts.member.replica.watch
    ticket, trace, summary = life.trace(0)
    assert (trace, summary) == ("", "")
    watch.begin()
    watch.end()
    again, trace, summary = life.trace(ticket)
    assert again == ticket
    assert json.loads(trace)["traceEvents"][0]["args"] == {"name": "tiny: one pass"}
    assert summary.startswith("the device computes")
