"""A peer with a public address dials private ones of its neighbours alone.

Two witnesses with tenure must see both at one public host. An attacker claims it with fewer, or
names a service in the home of the victim.
"""

from dataclasses import replace
from typing import Any

import pytest

from atom.swarm.chain.commit import Voter, genesis
from atom.swarm.chain.messages import Leases, decode, encode
from atom.swarm.chain.tenure import from_the_start
from atom.swarm.dial_rules import AddressClass
from atom.swarm.records.lease import SignedLease, short_name
from atom.swarm.stream.frames import Purpose
from atom.swarm.transport import dialer, limits
from atom.swarm.transport.dialer import AddressInfo
from atom.swarm.transport.lease_exchange import LeaseExchange
from atom.swarm.transport.limits import Unreachable
from tests.swarm.swarm_samples import a_lease
from tests.swarm.transport_peers import Make, Peer

UNIX = 1_700_000_000.0
PRINTER = "192.168.1.9"
PUBLIC_HOST = "203.0.113.7"


class Member:
    """A peer over loopback, with its lease exchange as in a daemon."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.peer_id = peer, peer.peer_id
        self.exchange = LeaseExchange(self.peer_id, "place", peer.transport.public_hosts)
        peer.transport.set_neighbours(lambda: self.exchange.neighbours(0.0))

    def send_leases(self) -> None:
        own = SignedLease(b"not read here", a_lease(self.peer_id), UNIX + 8)
        self.exchange.publish(own)
        for receiver, message in self.exchange.due(0.0).items():
            self.claim(receiver, message.neighbours)

    def claim(self, receiver: str, names: tuple[bytes, ...]) -> None:
        assert self.peer.transport.send(receiver, encode(Leases(neighbours=names)))

    def hear(self, count: int) -> None:
        """Take `count` messages."""
        for _ in range(count):
            sender, _, raw = self.peer.heard.get(timeout=10.0)
            message = decode(raw)
            assert isinstance(message, Leases)
            self.exchange.hear(sender, message, 0.0, UNIX)


class Swarm:
    """A victim with a public address, a peer in its home, one elsewhere, and two witnesses.

    The victim and its neighbour reach the witnesses from 127.0.0.1, the peer elsewhere from ::1.
    """

    def __init__(self, make: Make) -> None:
        self.announced = ["127.0.0.1"]
        self.victim = Member(make(announced=self.announced))
        self.near = Member(make())
        self.far, *self.witnesses = (Member(make(host="::")) for _ in range(3))
        self.all = self.victim, self.near, self.far, *self.witnesses
        for one in self.all:
            for other in self.all:
                from_far = self.far in (one, other) and one is not other
                host = (
                    "[::1]" if from_far and other.peer.transport.address[0] == "::" else "127.0.0.1"
                )
                port = other.peer.transport.address[1]
                one.peer.transport.set_addresses(other.peer_id, [f"{host}:{port}"])
        first = genesis(b"m" * 32, b"s" * 32, Voter(self.victim.peer_id, bytes(16)))
        head = replace(
            first,
            members=tuple(member.peer_id for member in self.all),
            tenures=from_the_start([self.victim.peer_id, *(w.peer_id for w in self.witnesses)]),
        )
        for member in self.all:
            member.exchange.know(head, 0.0)

    def reach_witnesses(self) -> None:
        """Let all others open a connection to each witness, which gets a message over it."""
        clients = self.victim, self.near, self.far
        for witness in self.witnesses:
            for client in clients:
                client.claim(witness.peer_id, ())
            witness.hear(len(clients))


@pytest.fixture
def swarm(make_peer: Make, monkeypatch: pytest.MonkeyPatch) -> Swarm:
    """A swarm whose witnesses take loopback for public hosts."""
    monkeypatch.setattr(limits, "class_of", lambda host: AddressClass.PUBLIC)
    return Swarm(make_peer)


def dialled(swarm: Swarm, patch: pytest.MonkeyPatch) -> list[str]:
    """Return the hosts that the victim dials for its neighbour, then for `far`."""
    found = list[str]()

    def connect(target: AddressInfo, *_: object) -> Any:
        found.append(target[4][0])
        raise OSError("no such network here")

    patch.setattr(dialer, "_connect", connect)
    swarm.announced[:] = [PUBLIC_HOST]
    transport = swarm.victim.peer.transport
    for other, host in ((swarm.near, "10.0.0.8"), (swarm.far, PRINTER)):
        transport.set_addresses(other.peer_id, [f"{host}:9100"])
        with pytest.raises(Unreachable):
            transport.connect(other.peer_id, Purpose.MESSAGES)
    return found


def test_two_witnesses_that_see_two_peers_at_one_host_make_them_dial_each_other(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.reach_witnesses()
    for witness in swarm.witnesses:
        witness.send_leases()
    swarm.victim.hear(len(swarm.witnesses))
    assert swarm.victim.exchange.neighbours(0.0) == {swarm.near.peer_id}
    assert dialled(swarm, monkeypatch) == ["10.0.0.8"]


def test_fewer_witnesses_make_the_victim_dial_nothing_in_its_home(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker's peer elsewhere has a lease with the address of the victim's printer.

    Only one liar with tenure names the neighbour and that peer; liars without tenure do, too. Two
    with tenure name the printer: no peer of the run has that name. A later claim of a liar replaces
    the earlier one, so each makes a single claim.
    """
    (one, other), near, far = swarm.witnesses, swarm.near, swarm.far
    claims = {one: [one, near, far], near: [near, far], far: [far, near]}
    printer = short_name(PRINTER), short_name(f"{PRINTER}:9100")
    for liar, named in claims.items():
        names = (short_name(member.peer_id) for member in named)
        liar.claim(swarm.victim.peer_id, (*names, *printer))
    other.claim(swarm.victim.peer_id, printer)
    swarm.victim.hear(len(claims) + 1)
    assert dialled(swarm, monkeypatch) == []
