import pytest

from atom.cli.shell.look_alikes import NAME


@pytest.mark.parametrize(
    ("encoding", "wanted"), [("ascii", "+ .QDW61Z - a > b ?"), ("latin-1", "+ .QDW61Z · a > b ?")]
)
def test_what_a_terminal_lacks_is_written_as_something_like_it(encoding: str, wanted: str) -> None:
    assert "✓ …QDW61Z · a → b 漢".encode(encoding, NAME).decode(encoding) == wanted


def test_what_cannot_be_read_stays_a_fault() -> None:
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", NAME)
