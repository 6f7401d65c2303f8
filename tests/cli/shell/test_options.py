import pytest

from atom.cli.shell.options import parse_deadline


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, None), ("30 s", 30.0), ("2 min", 120.0), ("45", 45.0)]
)
def test_a_deadline(text: str | None, seconds: float | None) -> None:
    assert parse_deadline(text) == seconds
