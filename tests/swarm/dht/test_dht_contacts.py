"""Where DHT nodes were met: what of it is worth keeping."""

import warnings

from atom.swarm.identity import Identity

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hivemind's own, at import
    from atom.swarm.dht.node import Contacts

ADA, BOB, CYD = (Identity.create().peer_id for _ in range(3))


def at(port: int, peer_id: str) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}"


def test_who_came_back_on_another_port_is_found_there() -> None:
    """The third start forgets the first: its ports are the system's choice each time."""
    contacts = Contacts([at(1, ADA)], [], most=8)
    contacts.meet(ADA, [at(2, ADA)])
    assert contacts.addresses() == [at(2, ADA), at(1, ADA)]
    contacts.meet(ADA, [at(3, ADA)])
    assert contacts.addresses() == [at(3, ADA), at(2, ADA)]


def test_what_is_as_before_changes_nothing() -> None:
    contacts = Contacts([at(1, ADA), at(2, BOB)], [], most=8)
    contacts.meet(BOB, [at(9, BOB), at(2, BOB)])
    contacts.meet(BOB, [])
    assert contacts.addresses() == [at(1, ADA), at(2, BOB)]


def test_what_people_named_stays() -> None:
    contacts = Contacts([], [at(1, ADA)], most=1)
    for port in (2, 3, 4):
        contacts.meet(ADA, [at(port, ADA)])
        contacts.meet(BOB, [at(port, BOB)])
    assert contacts.addresses() == [at(4, BOB), at(4, ADA), at(3, BOB), at(3, ADA), at(1, ADA)]
    contacts.meet(CYD, [at(5, CYD)])
    assert at(1, ADA) in contacts.addresses()
    assert contacts.lost({ADA}) == [at(5, CYD)], "of strangers the newest"


def test_what_was_kept_is_read_as_it_was() -> None:
    contacts = Contacts([], [], most=8)
    for port in (1, 2):
        for peer_id in (ADA, BOB):
            contacts.meet(peer_id, [at(port, peer_id)])
    assert Contacts(contacts.addresses(), [], most=8).addresses() == contacts.addresses()
