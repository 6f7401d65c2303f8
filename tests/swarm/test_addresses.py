import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom.base.errors import AddressError
from atom.swarm.addresses import (
    EXAMPLE_JOIN,
    EXAMPLE_MULTIADDR,
    EXAMPLE_PEER,
    JoinAddress,
    ListenAddress,
    RecentHead,
    format_join_address,
    parse_join_address,
    parse_listen,
    parse_multiaddr,
    with_entrances,
    with_head,
)
from atom.swarm.dial_rules import rank_addresses
from atom.swarm.identity import Identity

RSA_PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
BY_NAME = f"/dns4/node.example.org/tcp/31337/p2p/{RSA_PEER}"


def test_join_addresses_are_read_as_people_paste_them():
    whole = JoinAddress((EXAMPLE_MULTIADDR,), "shakespeare", EXAMPLE_PEER)
    folded = f"join: {EXAMPLE_JOIN[:60]}\n  {EXAMPLE_JOIN[60:]} \n"
    assert parse_join_address(EXAMPLE_JOIN) == parse_join_address(folded) == whole
    two = parse_join_address(f"{EXAMPLE_MULTIADDR},{BY_NAME}/run/my.run-2/owner/{EXAMPLE_PEER}")
    assert two == JoinAddress((EXAMPLE_MULTIADDR, BY_NAME), "my.run-2", EXAMPLE_PEER)


@pytest.mark.parametrize(
    ("run", "port", "host"),
    [
        ("a", 1, "10.0.0.5"),
        ("my.run-2_x", 31337, "2001:db8::7"),
        ("0" * 63, 65535, "::ffff:1.2.3.4"),
    ],
)
def test_what_is_formatted_is_read_back(run, port, host):
    bootstrap = f"{ListenAddress(host, port).multiaddr()}/p2p/{RSA_PEER}"
    address = JoinAddress((bootstrap,), run, EXAMPLE_PEER)
    assert parse_join_address(format_join_address(address)) == address


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        (EXAMPLE_JOIN, "x" * 5000),
        (EXAMPLE_MULTIADDR, ""),
        ("/run/shakespeare", ""),
        (f"/owner/{EXAMPLE_PEER}", ""),
        (f"/owner/{EXAMPLE_PEER}", f"/owner/{RSA_PEER}"),
        (f"/p2p/{EXAMPLE_PEER}", ""),
        (f"/p2p/{EXAMPLE_PEER}", "/p2p/12D3KooW…"),
        ("10.0.0.5", "10.0.0.555"),
        ("/ip4/10.0.0.5", "/dns4/a_name!"),
        ("/tcp/31337", "/tcp/70000"),
        (EXAMPLE_MULTIADDR, ",".join([EXAMPLE_MULTIADDR] * 17)),
    ],
)
def test_every_part_of_a_join_address_is_checked(part, instead):
    assert part in EXAMPLE_JOIN
    with pytest.raises(AddressError) as caught:
        parse_join_address(EXAMPLE_JOIN.replace(part, instead, 1))
    assert caught.value.hint
    assert len(caught.value.message) < 400


@given(st.text(alphabet="/:.,ip46tcrunowe0123456789\x00é ", max_size=80))
def test_no_text_causes_anything_but_an_address_error(text):
    for parse in (parse_join_address, parse_multiaddr, parse_listen):
        with contextlib.suppress(AddressError):
            parse(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("0.0.0.0:31337", "0.0.0.0", 31337),
        (":0", "0.0.0.0", 0),
        ("localhost:65535", "127.0.0.1", 65535),
        ("[::]:80", "::", 80),
        ("[2001:db8:0::1]:80", "2001:db8::1", 80),
    ],
)
def test_listen_addresses(text, host, port):
    listen = parse_listen(text)
    assert listen == ListenAddress(host, port)
    assert parse_listen(str(listen)) == listen
    assert listen.is_loopback is (host == "127.0.0.1")


def test_an_address_with_other_entrances_names_each_node_once():
    own, *others = (f"/ip4/10.0.0.{n}/tcp/1/p2p/{Identity.create().peer_id}" for n in range(5))
    address = JoinAddress((own,), "words", EXAMPLE_PEER)
    assert with_entrances(address, ()) == address
    again = own.replace("10.0.0.0", "192.168.0.1")
    assert with_entrances(address, [again, *others]).bootstrap == (own, *others[:2])
    told = format_join_address(with_entrances(address, others))
    assert parse_join_address(told).bootstrap == (own, *others[:2])


@pytest.mark.parametrize(
    "text",
    ["", "31337", "1.2.3.4", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:65536", "1.2.3.4:-1", "::1:80",
     "[1.2.3.4]:80", "[::1:80", "example.org:80", "1.2.3.4:٣", "1.2.3.4:000080",
     "[fe80::1%eth0]:1"],
)  # fmt: skip
def test_malformed_listen_addresses(text):
    with pytest.raises(AddressError) as caught:
        parse_listen(text)
    assert "HOST:PORT" in caught.value.hint
    assert not text or caught.value.message.count(repr(text)) <= 1


def test_the_address_most_worth_pasting_comes_first():
    def at(host):
        return f"/ip4/{host}/tcp/1/p2p/{EXAMPLE_PEER}"

    visible = [at("127.0.0.1"), at("172.17.0.1"), at("192.168.1.7"), at("8.8.8.8"), BY_NAME]
    visible += [f"/ip6/2001:4860::1/tcp/1/p2p/{EXAMPLE_PEER}", at("8.8.8.8").replace("tcp", "udp")]
    order = [3, 4, 6, 5, 2, 1, 0]
    ranked = rank_addresses(visible, "192.168.1.7")
    assert ranked == tuple(visible[place] for place in order)


HEAD = RecentHead(7, b"\xab" * 32)


def test_the_owner_s_own_peer_signs_the_head_in_its_address():
    owner, other = Identity.create(), Identity.create()
    address = JoinAddress((EXAMPLE_MULTIADDR,), "words", owner.peer_id)
    plain = with_head(address, *HEAD[:2], other)
    assert plain.head == HEAD
    signed = with_head(address, *HEAD[:2], owner)
    assert signed.head._replace(signature=b"") == HEAD
    assert len(signed.head.signature) == 64
    for each in (plain, signed):
        assert parse_join_address(format_join_address(each)) == each


@pytest.mark.parametrize("part", ["owner", "run", "round", "digest", "signature", "domain"])
def test_a_head_that_the_owner_did_not_sign_is_refused(part):
    owner, other = Identity.create(), Identity.create()
    address = with_head(JoinAddress((EXAMPLE_MULTIADDR,), "words", owner.peer_id), *HEAD[:2], owner)
    parse_join_address(format_join_address(address))
    outer = {"owner": {"owner": other.peer_id}, "run": {"run": "word"}}
    changes = {
        "round": {"round": 8},
        "digest": {"digest": b"\xcd" * 32},
        "signature": {"signature": bytes(64)},
        "domain": {"signature": owner.sign("vote", b"words/7-" + HEAD.digest.hex().encode())},
    }
    forged = replace(address, head=address.head._replace(**changes.get(part, {})))
    forged = replace(forged, **outer.get(part, {}))
    with pytest.raises(AddressError, match="owner did not sign the head") as caught:
        parse_join_address(format_join_address(forged))
    assert "atom info" in caught.value.hint


@pytest.mark.parametrize("end", ["-", "-ab", f"-{'ab' * 63}", f"-{'AB' * 64}", f"-{'ab' * 64}-"])
def test_a_malformed_signature_is_no_part_of_an_address(end):
    with pytest.raises(AddressError, match="is not a join address"):
        parse_join_address(f"{EXAMPLE_JOIN}/head/7-{'ab' * 32}{end}")
