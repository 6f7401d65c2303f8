"""Another process that lives under our own name, as the directory shows it."""

from swarm_samples import a_lease

from atom.swarm.chain.commit import Voter
from atom.swarm.records.lease import Lease
from atom.swarm.records.lease_book import TwinWatch

ME = Voter("us", b"m" * 16)


def lease(incarnation: bytes, serial: int) -> Lease:
    return a_lease(ME.peer_id, incarnation=incarnation, serial=serial)


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
