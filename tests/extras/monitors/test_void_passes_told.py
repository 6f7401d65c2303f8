"""What a daemon says of passes that count for nothing."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom.base.events import EventList
from atom.daemon.console import Silence
from atom.daemon.peer.life import Life
from atom.daemon.state_directory import StateDirectory
from atom.swap.voided import Cause, PassVoided
from atom.swarm.chain.commit import Voter
from atom.training.replica.passes import PassWatch
from atom.training.round_stats import RoundStats
from tests.manual_clock import ManualClock


class Listener(Silence):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Executor:
    """As far as void passes are concerned."""

    def __init__(self) -> None:
        self.stats = RoundStats(Voter("me", bytes(16)))
        self.voided = self.stats.voided


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
        executor=Executor(), member=member, lookout=SimpleNamespace(nudge=lambda: None)
    )
    return life


def test_of_many_for_one_cause_few_are_said(life: Life, listener: Listener) -> None:
    for most in (4, 2, 1):
        life.on_void(PassVoided(Cause.MEMORY, "no room", hint=f"at most {most} per pass"))
    assert listener.notes == [
        "the pass is void, out-of-memory: no room; at most 4 per pass",
        "the pass is void, out-of-memory: no room; at most 2 per pass",
    ]
    for _ in range(7):
        life.on_void(PassVoided(Cause.GRADIENTS, "though the loss is finite"))
        life.on_pass()
    assert len(listener.notes) == 2 + 3, "the 1st, 2nd and 4th"


def test_a_trace_is_there_when_the_pass_has_ended(life: Life) -> None:
    watch = life.parts.member.replica.watch
    ticket, trace, summary = life.trace(0)
    assert (trace, summary) == ("", "")
    watch.begin()
    watch.end(["all"])
    again, trace, summary = life.trace(ticket)
    assert again == ticket
    assert json.loads(trace)["traceEvents"][0]["args"] == {"name": "tiny: one pass"}
    assert summary.startswith("the device computes")
