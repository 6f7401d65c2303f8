import pytest

from atom.base.errors import AddressError
from atom.swarm.dht.errors import explain_refusal, explain_unreachable

ADDRESS = "/ip4/10.0.0.5/tcp/31337/p2p/12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"
OTHER = "/ip4/10.0.0.6/tcp/1/p2p/x"
REFUSED = "dial tcp4 10.0.0.5:31337: connect: connection refused"
CLOCKS = "local time must be within 3 seconds  of others(local: {}, peer: 100.0)"


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        ([REFUSED], f"cannot reach {ADDRESS}: connection refused"),
        ([REFUSED] * 2, "any of the 2 DHT nodes named: connection refused"),
        ([REFUSED, "peer id mismatch: remote key matches QmO"], f"{OTHER} is reached, but another"),
        (["failed to dial: no good addresses"], "its host name is unknown"),
        (["no answer within 8 s"], "no answer within 8 s"),
        ([""], "no reason given"),
        (["x" * 10_000], "xxx"),
    ],
)
def test_why_no_node_is_reached(failures: list[str], said: str) -> None:
    told(explain_unreachable([ADDRESS, OTHER][: len(failures)], failures), said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CLOCKS.format("110.5"), "10 s ahead"),
        (CLOCKS.format("40.0"), "60 s behind"),
        ("Peer X can't access this node. Probably, libp2p has failed", "call this machine back"),
        ("bootstrap failed: none of the initial_peers responded to a ping", "no DHT node"),
        ("anything else", "anything else"),
    ],
)
def test_why_a_node_does_not_take_us_in(text: str, said: str) -> None:
    told(explain_refusal(text), said)


def told(error: AddressError, said: str) -> None:
    assert said in error.message
    assert error.hint
    assert len(error.message) < 600
