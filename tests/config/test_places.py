"""Where a state lies: one order for all commands."""

from pathlib import Path

import pytest

from atom.config.places import named_state_directory


@pytest.mark.parametrize(
    ("asked", "configured", "found"),
    [
        (Path("asked"), "configured", Path("asked")),
        (None, "configured", Path("configured")),
        (Path("asked"), None, Path("asked")),
        (None, None, None),
    ],
)
def test_the_command_line_comes_before_the_peer_file(
    asked: Path | None, configured: str | None, found: Path | None
) -> None:
    assert named_state_directory(asked, configured) == found
