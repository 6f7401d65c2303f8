"""A peer that listens on `[::]` is reached, and announced, by both address families."""

import json
import socket
from pathlib import Path

import pytest

from atom.config.peer_file import Network
from atom.daemon.peer.addresses import announced_multiaddrs, data_addresses, known_contacts
from atom.swarm import dial_rules
from atom.swarm.addresses import listening
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Reached
from atom.swarm.router.requests import PublicPort
from atom.swarm.transport import transport
from tests.swarm.transport_peers import Make

BOTH: dict[int, str | None] = {socket.AF_INET: "192.168.1.2", socket.AF_INET6: "2001:db8::2"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_every_interface_means_both_families(host: str) -> None:
    with listening("::", 0, "") as door:
        socket.create_connection((host, door.getsockname()[1]), timeout=10.0).close()


def test_a_peer_announces_the_families_that_it_listens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_rules, "primary_host", BOTH.get)
    alone, both = ("192.168.1.2:7",), ("[2001:db8::2]:7", "192.168.1.2:7")
    assert data_addresses(Network(), ("::", 7)) == both
    assert data_addresses(Network(), ("0.0.0.0", 7)) == alone
    named, said = ("a.example", "[2001:db8::9]"), ("a.example:7", "[2001:db8::9]:7")
    assert data_addresses(Network(announce=named), ("0.0.0.0", 7)) == said + alone
    opened = PublicPort("11.22.33.44", 8, 600)
    assert data_addresses(Network(), ("0.0.0.0", 7), opened) == ("11.22.33.44:8", *alone)
    node = "/ip4/11.22.33.44/tcp/8", "/dns4/a.example/tcp/9", "/ip4/192.168.1.2/tcp/9"
    assert announced_multiaddrs(["a.example"], "0.0.0.0:9", opened) == node
    assert announced_multiaddrs(["a.example"], "0.0.0.0:0") == ()
    assert announced_multiaddrs([], "0.0.0.0:9") == ()


def test_a_witness_on_both_families_dials_back_by_ipv4(
    make_peer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The witness sees an IPv4 address inside an IPv6 address."""
    monkeypatch.setattr(transport, "_PROBE_S", 0.1)
    asker, witness = make_peer(), make_peer(host="::")
    for one, other, host in ((asker, witness, "127.0.0.1"), (witness, asker, "a.example")):
        port = other.transport.address[1]
        one.transport.set_addresses(other.peer_id, [f"{host}:{port}"])
    assert asker.transport.probe(witness.peer_id) is Reached.YES


@pytest.mark.parametrize(
    "odd",
    ["/ip6zone/eth0/ip6/fe80::1/tcp/31337/p2p/{peer}", "/ip6/fe80::1%eth0/tcp/1/p2p/{peer}", "",
     "/", "{peer}", "x" * 9999, 7, None, {"a": 1}, ["/ip4/1.1.1.1/tcp/1/p2p/{peer}"]],
)  # fmt: skip
def test_an_odd_address_among_the_kept_ones_hides_no_other(tmp_path: Path, odd: object) -> None:
    peer = Identity.create().peer_id
    good = f"/ip4/1.1.1.1/tcp/31337/p2p/{peer}"
    path = tmp_path / "addresses.json"
    path.write_text(json.dumps([odd, good]).replace("{peer}", peer))
    assert good in known_contacts(path)


@pytest.mark.parametrize("text", ["[" * 10**5, "{}", "7", '"/ip4"', "null", "\0", ""])
def test_a_damaged_list_of_addresses_counts_as_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "addresses.json"
    path.write_text(text)
    assert known_contacts(path) == ()
