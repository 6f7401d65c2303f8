"""Of a crowd of leases: how many are checked after one reading, and whose."""

import pytest
from swarm_samples import a_lease

from atom.base.events import EventList
from atom.swarm.dht import directory as directory_module
from atom.swarm.dht.directory import RecordReader
from atom.swarm.identity import Identity
from atom.swarm.records.codec import decode_lease, encode_lease

OWNER = Identity.create()
PLACE = ("shakespeare", OWNER.peer_id)
CROWD = [Identity.create() for _ in range(40)]
FRIENDS = [Identity.create() for _ in range(4)]


@pytest.fixture
def checked(monkeypatch):
    """Whose records were checked, in turn; at most 16 after one reading."""
    authors = []

    def counted(record, run, owner, peer_id):
        authors.append(peer_id)
        return decode_lease(record, run, owner, peer_id)

    monkeypatch.setattr(directory_module, "decode_lease", counted)
    monkeypatch.setattr(directory_module, "MAX_NEWS_PER_READING", 16)
    return authors


def records(authors, serial, **changes):
    return [(each.peer_id, signed(each, serial=serial, **changes)) for each in authors]


def signed(who, **changes):
    return encode_lease(a_lease(who.peer_id, **changes), *PLACE, who, 9e9)


def test_a_crowd_with_news_all_the_time_holds_up_nobody_who_was_there(checked):
    reader = RecordReader(None)
    for serial in range(1, 9):
        crowd = records(CROWD, serial) if serial > 1 else []
        leases = reader.leases([*records(FRIENDS, serial), *crowd], *PLACE)
        assert [leases[each.peer_id].serial for each in FRIENDS] == [serial] * len(FRIENDS)
        assert len(checked) <= 16
        checked.clear()


def test_a_peer_whose_news_is_left_out_is_there_as_it_was(checked):
    reader = RecordReader(None)
    reader.leases(records(FRIENDS, 1), *PLACE)
    leases = reader.leases([*records(CROWD, 2), *records(FRIENDS, 2)], *PLACE)
    assert [leases[each.peer_id].serial for each in FRIENDS] == [1] * len(FRIENDS)


def test_a_record_seen_last_time_is_not_checked_again(checked):
    reader = RecordReader(None)
    reader.leases(records(FRIENDS, 1), *PLACE)
    checked.clear()
    assert len(reader.leases(records(FRIENDS, 1), *PLACE)) == len(FRIENDS)
    assert checked == []


def test_what_a_peer_says_is_taken_though_its_clock_was_set_back(checked):
    reader = RecordReader(None)
    reader.leases(records(FRIENDS, 7, issued_at=2000.0), *PLACE)
    leases = reader.leases(records(FRIENDS, 8, issued_at=1000.0), *PLACE)
    assert {lease.serial for lease in leases.values()} == {8}


def test_a_crowd_that_is_no_lease_is_not_all_that_is_checked(checked):
    events = EventList()
    reader = RecordReader(events)
    for serial in range(1, 30):
        forged = [(each.peer_id, b"noise") for each in CROWD]
        leases = reader.leases([*records(FRIENDS, serial), *forged], *PLACE)
        assert len(checked) <= 16
        checked.clear()
    assert leases.keys() == {each.peer_id for each in FRIENDS}
    assert {event["event"] for event in events.events} == {"record-refused"}
