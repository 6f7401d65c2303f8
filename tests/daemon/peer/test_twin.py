"""A copied key: two processes of one name."""

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
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.twin import TwinWatch
from tests.manual_clock import ManualClock

ME = Voter("us", b"m" * 16)


def lease(incarnation: bytes, serial: int) -> Lease:
    return Lease(
        peer_id=ME.peer_id,
        incarnation=incarnation,
        serial=serial,
        issued_at=0.0,
        state=PeerState.ACCUMULATING,
        head=b"h" * 32,
        round=1,
        work=1,
        sequences=0,
        rounds_joined=0,
        sequences_committed=0,
        sequences_per_s=1.0,
        tokens_per_s=1.0,
        pass_seconds=1.0,
        loss=None,
        state_digest=b"",
        addresses=(),
    )


def test_a_process_that_goes_on_under_our_name_is_seen() -> None:
    watch = TwinWatch()
    seen = [watch.sees(lease(b"t" * 16, serial), ME) for serial in (7, 7, 8, 8, 9)]
    assert seen == [False, False, False, False, True]


def test_our_own_leases_and_those_of_our_earlier_lives_are_no_twin() -> None:
    watch = TwinWatch()
    for serial in (40, 41, 40, 41):  # the last words of a process that was killed, out of order
        assert not watch.sees(lease(b"o" * 16, serial), ME)
    for serial in range(9):
        assert not watch.sees(lease(ME.incarnation, serial), ME)
    assert not watch.sees(None, ME)
    assert not watch.sees(lease(b"p" * 16, 90), ME), "another life before"
    assert not watch.sees(lease(b"p" * 16, 91), ME)


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
    told: Any = SimpleNamespace(know=nothing, post=nothing, hear=nothing)
    life.parts = SimpleNamespace(me=ME, outreach=told)  # type: ignore[assignment]
    life._machine = SimpleNamespace(in_doubt=False)  # type: ignore[assignment]
    life._loop = life._herald = told
    clock.advance(NEW_S if is_new else NEW_S + 1)
    for serial in range(9):
        life._take_leases({ME.peer_id: lease(b"t" * 16, serial)})
    assert events.events == [{"event": "same-identity"}]
    assert (str(life._failure) if life._failure else "") == (WORDS if is_new else "")
    assert console.notes == ([] if is_new else [f"{WORDS}; {HINT}"])
