"""Starts that fail, beside those of tests/swarm/dht/test_dht_process.py."""

import pytest

from atom.base.errors import AddressError
from atom.swarm.dht.p2pd import explain_refusal, explain_unreachable

ADDRESSES = [f"/ip4/10.0.0.{number}/tcp/1/p2p/x" for number in (5, 6)]
CLOCKS = "local time must be within 3 seconds  of others(local: 40.0, peer: 100.0)"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (explain_unreachable(ADDRESSES, ["connection refused"] * 2), "any of the 2 DHT nodes"),
        (explain_unreachable(ADDRESSES[:1], ["no good addresses"]), "its host name is unknown"),
        (explain_unreachable(ADDRESSES[:1], [""]), "no reason given"),
        (explain_unreachable(ADDRESSES[:1], ["x" * 10_000]), "xxx"),
        (explain_refusal(CLOCKS), "60 s behind"),
        (explain_refusal("anything else"), "anything else"),
    ],
)
def test_what_is_in_the_way_is_said(error: AddressError, said: str) -> None:
    assert said in error.message
    assert error.hint
    assert len(error.message) < 600
