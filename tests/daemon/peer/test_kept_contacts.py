"""Addresses of nodes that were met are kept, as soon as there is room for them."""

from pathlib import Path

from atom.daemon.peer.addresses import KeptContacts, known_contacts
from atom.swarm.identity import Identity
from atom.training.storage.disk import DiskRoom
from tests.event_list import EventList
from tests.manual_clock import ManualClock


def test_what_found_no_room_is_written_later(tmp_path: Path) -> None:
    clock, room = ManualClock(), DiskRoom(tmp_path, EventList())
    path = tmp_path / "gone" / "addresses.json"
    met = (f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.create().peer_id}",)
    contacts = KeptContacts(path, clock)
    contacts.keep(met, room)
    assert room.paused.keys() == {"addresses"}
    path.parent.mkdir()
    contacts.keep(met, room)
    assert not path.exists(), "not all the time"
    clock.advance(20.0)
    contacts.keep(met, room)
    assert known_contacts(path) == met
    assert room.paused == {}


def test_the_first_that_is_met_is_written_at_once(tmp_path: Path) -> None:
    """Whoever is killed right after begins a chain of its own, if it knows nobody."""
    clock, room, path = ManualClock(), DiskRoom(tmp_path, EventList()), tmp_path / "addresses.json"
    met = tuple(f"/ip4/127.0.0.1/tcp/9/p2p/{Identity.create().peer_id}" for _ in range(2))
    contacts = KeptContacts(path, clock)
    contacts.keep((), room)
    clock.advance(1.0)
    contacts.keep(met[:1], room)
    assert known_contacts(path) == met[:1]
    contacts.keep(met, room)
    assert known_contacts(path) == met[:1], "the others now and then"


def test_what_is_kept_already_is_no_news(tmp_path: Path) -> None:
    """A daemon that lives for some seconds only learns after its first look who has moved."""
    clock, room, path = ManualClock(), DiskRoom(tmp_path, EventList()), tmp_path / "addresses.json"
    peer_id = Identity.create().peer_id
    before, now = ((f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}",) for port in (8, 9))
    KeptContacts(path, clock).keep(before, room)
    contacts = KeptContacts(path, clock)
    contacts.keep(before, room)
    clock.advance(1.0)
    contacts.keep(now, room)
    assert known_contacts(path) == now
