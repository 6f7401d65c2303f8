"""A copied key: what each of the two processes does about it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom.base.events import EventList
from atom.daemon.console import Silence
from atom.daemon.peer.beside_a_twin import HINT, NEW_S, WORDS
from atom.daemon.peer.life import Life
from atom.daemon.state_directory import StateDirectory
from atom.swarm.chain.commit import Voter
from tests.manual_clock import ManualClock

ME = Voter("us", b"m" * 16)


class Notes(Silence):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("is_new", [True, False])
def test_who_began_later_ends_and_who_was_there_is_told_once(tmp_path: Path, is_new: bool) -> None:
    console, events, clock = Notes(), EventList(), ManualClock()
    life = Life(StateDirectory(tmp_path), console, events, clock, "")
    nothing: Any = lambda *given: None  # noqa: E731 - stands for every part that is only told
    told: Any = SimpleNamespace(know=nothing, read=nothing, hear=nothing)
    lookout = SimpleNamespace(directory=SimpleNamespace())
    life.parts = SimpleNamespace(me=ME, outreach=told, lookout=lookout)  # type: ignore[assignment]
    life._machine = SimpleNamespace(head=SimpleNamespace(known=()))  # type: ignore[assignment]
    life._loop = life._herald = told
    clock.advance(NEW_S if is_new else NEW_S + 1)
    for serial in range(9):
        lease: Any = SimpleNamespace(incarnation=b"t" * 16, serial=serial)
        life._take_leases({ME.peer_id: lease})
    assert events.events == [{"event": "same-identity"}]
    assert (str(life._failure) if life._failure else "") == (WORDS if is_new else "")
    assert console.notes == ([] if is_new else [f"{WORDS}; {HINT}"])
