import pytest

from atom.base.errors import AddressError
from atom.swarm.dht.errors import explain_refusal, explain_unreachable

ADDRESS = "/ip4/10.0.0.5/tcp/31337/p2p/12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("dial tcp4 10.0.0.5:31337: connect: connection refused", "connection refused"),
        ("dial tcp4 10.0.0.5:31337: connect: network is unreachable", "no way to that network"),
        ("dial tcp4 10.0.0.5:31337: connect: no route to host", "no way to that network"),
        ("peer id mismatch: expected 12D3, but remote key matches QmOther", "(QmOther)"),
        ("failed to dial: no good addresses", "of a kind that is not dialled"),
        ("Connect failed. msg=dial to self attempted", "this peer itself"),
        ("no answer within 8 s", "no answer within 8 s"),
        ("", "no reason given"),
        ("x" * 10_000, "xxx"),
    ],
)
def test_an_unreachable_node(failure, said):
    error = explain_unreachable([ADDRESS], [failure])
    assert isinstance(error, AddressError)
    assert said in error.message
    assert error.hint
    assert len(error.message) < 600


def test_a_name_that_nobody_knows():
    named = ADDRESS.replace("/ip4/10.0.0.5", "/dns4/no.such.invalid")
    error = explain_unreachable([named], ["failed to dial: no good addresses"])
    assert "host name is unknown" in error.message


def test_of_several_nodes_the_one_is_named_where_another_answers():
    others = ["connection refused", "remote key matches QmOther"]
    error = explain_unreachable([ADDRESS, "/ip4/10.0.0.6/tcp/1/p2p/x"], others)
    assert error.message.startswith("/ip4/10.0.0.6/tcp/1/p2p/x is reached, but another peer (QmOth")


def test_of_several_nodes_all_are_meant():
    error = explain_unreachable([ADDRESS] * 3, ["connection refused"] * 3)
    assert "any of the 3 DHT nodes" in error.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("local time must be within 3 seconds  of others(local: 110.5, peer: 100.0)", "10 s ahead"),
        ("local time must be within 3 seconds  of others(local: 40.0, peer: 100.0)", "60 s behind"),
        ("Peer X can't access this node. Probably, libp2p has failed", "call this machine back"),
        ("bootstrap failed: none of the initial_peers responded to a ping", "no DHT node"),
        ("anything else", "anything else"),
    ],
)
def test_a_node_that_does_not_take_us_in(text, said):
    error = explain_refusal(text)
    assert said in error.message
    assert error.hint
