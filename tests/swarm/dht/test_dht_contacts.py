"""Where DHT nodes were met: what of it is worth keeping."""

import warnings
from pathlib import Path

from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.identity import Identity

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # hivemind's own, at import
    from atom.swarm.dht.node import MAX_CONTACTS, DhtNode, with_contact

ADA, BOB = (Identity.create().peer_id for _ in range(2))


def at(port: int, peer_id: str) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer_id}"


def test_who_came_back_on_another_port_is_found_there() -> None:
    """The third start forgets the first: its ports are the system's choice each time."""
    contacts = with_contact((at(1, ADA), at(1, BOB)), ADA, [at(2, ADA)])
    assert contacts == (at(2, ADA), at(1, ADA), at(1, BOB))
    assert with_contact(contacts, ADA, [at(3, ADA)]) == (at(3, ADA), at(2, ADA), at(1, BOB))
    assert with_contact(contacts, ADA, [at(1, ADA)]) == (at(1, ADA), at(2, ADA), at(1, BOB))


def test_what_is_as_before_changes_nothing() -> None:
    contacts = (at(1, ADA), at(2, BOB))
    assert with_contact(contacts, BOB, [at(9, BOB), at(2, BOB)]) == contacts
    assert with_contact(contacts, BOB, []) == contacts


def test_the_newest_are_kept_and_what_people_named_stays() -> None:
    node = DhtNode(NodeSettings(initial_peers=[at(1, ADA)]), Path())
    for number in range(2 * MAX_CONTACTS):
        stranger = f"{number}"
        node._contacts = with_contact(node._contacts, stranger, [at(5, stranger)])
    assert len(node._contacts) == MAX_CONTACTS
    assert node._entrances()[0] == at(5, f"{2 * MAX_CONTACTS - 1}")
    assert node._entrances()[-1] == at(1, ADA)
