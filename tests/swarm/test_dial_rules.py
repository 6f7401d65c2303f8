"""Tables of the addresses that are announced and dialled."""

import socket

import pytest

from atom.base.errors import Reason
from atom.swarm import dial_rules
from atom.swarm.dial_rules import (
    LOCAL,
    AddressClass,
    class_of,
    dialled_classes,
    may_dial,
    own_hosts,
)

PUBLIC, PRIVATE, SHARED, LOOPBACK, FORBIDDEN = AddressClass
TABLE = {
    PUBLIC: "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0 "
    "192.167.255.255 192.169.0.0 223.255.255.255 2606:4700::1111 ::ffff:1.1.1.1 2002:101:101:: "
    "64:ff9b::101:101 name.example",
    PRIVATE: "10.0.0.0 10.255.255.255 172.16.0.0 172.31.255.255 192.168.0.0 192.168.255.255 "
    "198.18.0.1 fc00::1 fdff::1 fd00::1%eth0 ::ffff:192.168.1.1 2002:c0a8:101:: 2002:a00:1::5 "
    "64:ff9b::10.0.0.1 2001:0:101:101::f5ff:fffe",
    SHARED: "100.64.0.0 100.127.255.255 ::ffff:100.64.0.1 64:ff9b::100.64.0.1",
    LOOPBACK: "127.0.0.1 127.255.255.255 ::1 ::ffff:127.0.0.1 2002:7f00:1:: 64:ff9b::127.0.0.1",
    FORBIDDEN: "0.0.0.0 0.1.2.3 169.254.0.1 169.254.169.254 224.0.0.1 239.255.255.255 240.0.0.1 "
    "255.255.255.255 192.0.0.1 :: fe80::1 fe80::1%eth0 ff02::1 fec0::1 ::7f00:1 ::ffff:0.0.0.0 "
    "::ffff:169.254.169.254 2002:a9fe:a9fe:: 64:ff9b::224.0.0.1 64:ff9b:1::a00:1 100::1 4000::1",
}
HOSTS = [(host, kind) for kind, hosts in TABLE.items() for host in hosts.split()]


@pytest.mark.parametrize(("host", "kind"), HOSTS)
def test_each_address_is_of_one_class_and_dialled_if_that_is(host: str, kind: AddressClass) -> None:
    assert class_of(host) is kind
    refused = Reason.ADDRESS_NOT_DIALLED
    assert may_dial(host, frozenset(AddressClass)) is (refused if kind is FORBIDDEN else None)
    assert may_dial(host, set(AddressClass) - {kind}) is refused
    assert may_dial(host, (), is_neighbour=True) is (None if kind in LOCAL else refused)


def entrance(host: str) -> str:
    kind = "ip6" if ":" in host else "dns4" if host[-1].isalpha() else "ip4"
    return f"/{kind}/{host}/tcp/31337/p2p/12D3KooW"


@pytest.mark.parametrize(
    ("announced", "entrances", "lan", "beside_public"),
    [
        ("192.168.1.2", "", False, LOCAL),
        ("100.64.0.9", "1.1.1.1", False, LOCAL),
        ("", "1.1.1.1", False, LOCAL),
        ("1.1.1.1", "", False, set()),
        ("2606::1 192.168.1.2", "name.example", False, set()),
        ("name.example", "1.1.1.1", False, set()),
        ("1.1.1.1", "", True, LOCAL),
        ("1.1.1.1", "10.0.0.1", False, {PRIVATE}),
        ("1.1.1.1", "fd00::1 10.0.0.1", False, {PRIVATE}),
        ("1.1.1.1", "100.64.0.1", False, {SHARED}),
        ("1.1.1.1", "2.2.2.2 10.0.0.1", False, set()),
        ("1.1.1.1", "2.2.2.2 127.0.0.1", False, set()),
        ("127.0.0.1", "", False, {*LOCAL, LOOPBACK}),
        ("::1 127.0.0.2", "1.1.1.1", False, {*LOCAL, LOOPBACK}),
        ("127.0.0.1 192.168.1.2", "", True, LOCAL),
        ("192.168.1.2", "127.0.0.1", False, {*LOCAL, LOOPBACK}),
        ("", "::1", False, {*LOCAL, LOOPBACK}),
        ("", "127.0.0.1 192.168.1.2", False, LOCAL),
    ],
)
def test_classes_dialled_by_a_peer(
    announced: str, entrances: str, lan: bool, beside_public: set[AddressClass]
) -> None:
    found = dialled_classes(announced.split(), map(entrance, entrances.split()), lan)
    assert found == {PUBLIC} | beside_public


def test_loopback_is_announced_by_a_machine_that_has_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[int, str | None] = {socket.AF_INET: "192.168.1.2", socket.AF_INET6: "2606::1"}
    monkeypatch.setattr(dial_rules, "primary_host", found.get)
    assert [*own_hosts("0.0.0.0")] == ["192.168.1.2"]
    assert [*own_hosts("::")] == ["2606::1", "192.168.1.2"]
    assert [*own_hosts("127.0.0.9")] == ["127.0.0.9"]
    found |= {socket.AF_INET: None, socket.AF_INET6: "fe80::1"}
    assert [*own_hosts("0.0.0.0")] == [*own_hosts("::")] == ["127.0.0.1"]
