"""Names of tests are the same in every process."""

import pytest

from atom.swarm.identity import Identity

DRAWN = Identity.create()


@pytest.mark.parametrize("drawn", [DRAWN.peer_id, DRAWN.peer_id.encode(), "said"])
def test_what_is_drawn_is_not_in_them(drawn: object, request: pytest.FixtureRequest) -> None:
    assert request.node.name.split("[")[1] in {"drawn0]", "drawn1]", "said]"}
