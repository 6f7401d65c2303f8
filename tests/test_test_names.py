"""Names of tests are the same in every process, and no two test files share a name."""

from collections import Counter
from pathlib import Path

import pytest

from atom.swarm.identity import Identity

DRAWN = Identity.create()


@pytest.mark.parametrize("drawn", [DRAWN.peer_id, DRAWN.peer_id.encode(), "said"])
def test_what_is_drawn_is_not_in_them(drawn: object, request: pytest.FixtureRequest) -> None:
    assert request.node.name.split("[")[1] in {"drawn0]", "drawn1]", "said]"}


def test_no_two_files_share_a_name() -> None:
    """pytest takes the second for the first, and ends."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
