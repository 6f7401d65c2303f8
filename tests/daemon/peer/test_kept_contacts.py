"""Addresses of nodes that were met are kept, as soon as there is room for them."""

from pathlib import Path

from atom.daemon.peer.addresses import KeptContacts, known_contacts
from atom.swarm.identity import Identity
from atom.training.storage.disk import DiskRoom
from tests.event_list import EventList
from tests.manual_clock import ManualClock

ONE, OTHER = (f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.create().peer_id}" for _ in range(2))


def test_what_found_no_room_is_written_later(tmp_path: Path) -> None:
    clock, room = ManualClock(), DiskRoom(tmp_path, EventList())
    path = tmp_path / "gone" / "addresses.json"
    contacts = KeptContacts(path, clock)
    contacts.keep((ONE,), room)
    assert room.paused.keys() == {"addresses"}
    path.parent.mkdir()
    contacts.keep((ONE,), room)
    assert not path.exists(), "not all the time"
    clock.advance(20.0)
    contacts.keep((ONE,), room)
    assert known_contacts(path) == (ONE,)
    assert room.paused == {}


def test_the_first_news_is_written_at_once(tmp_path: Path) -> None:
    """A peer that is killed early and finds no contacts at its next start would be alone."""
    clock, room, path = ManualClock(), DiskRoom(tmp_path, EventList()), tmp_path / "addresses.json"
    contacts = KeptContacts(path, clock)
    contacts.keep((), room)
    contacts.keep((ONE,), room)
    contacts.keep((ONE, OTHER), room)
    assert known_contacts(path) == (ONE,), "the others now and then"
    again = KeptContacts(path, clock)
    for met in ((ONE,), (OTHER,)):  # contacts that the file has already are not written again
        again.keep(met, room)
    assert known_contacts(path) == (OTHER,)
