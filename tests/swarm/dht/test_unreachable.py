"""Why a node could not be entered: libp2p's words become ours."""

import pytest

from atom.base.errors import AddressError, IdentityError, UserError
from atom.swarm.dht.p2pd import explain_refusal, explain_unreachable

SELF = "Connect failed. msg=failed to dial: dial to self attempted"
REFUSED = "dial tcp4 10.0.0.5:31337: connect: connection refused"
CLOCKS = "response is not within 3.0 seconds of local time: (local: {}, peer: {})"


@pytest.mark.parametrize(
    ("failures", "kind", "words"),
    [
        ([SELF], IdentityError, "this identity is in use by another peer: node0"),
        ([SELF, SELF], IdentityError, "any of the 2 DHT nodes"),
        ([SELF, REFUSED], AddressError, "connection refused"),
        ([REFUSED], AddressError, "cannot reach node0: connection refused"),
        (["i/o timeout"], AddressError, "i/o timeout"),
        (["remote key matches 12D3b"], AddressError, "another peer (12D3b) answers at node0"),
    ],
)
def test_a_node_that_cannot_be_dialled(
    failures: list[str], kind: type[UserError], words: str
) -> None:
    addresses = [f"node{number}" for number, _ in enumerate(failures)]
    found = explain_unreachable(addresses, failures)
    assert type(found) is kind
    assert words in found.message
    assert found.hint


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (1000.0, 990.0, "10 s ahead of"),
        (0.0, 3600.0 * 5, "5 h behind"),
    ],
)
def test_a_wrong_clock_is_named_with_the_difference(ours: float, theirs: float, words: str) -> None:
    found = explain_refusal(CLOCKS.format(ours, theirs))
    assert words in found.message
    assert "timedatectl set-ntp true" in found.hint
