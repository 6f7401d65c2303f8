import pytest
import typer

from atom.cli.shell.options import parse_deadline


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, None), ("30 s", 30.0), ("2 min", 120.0), ("45", 45.0)]
)
def test_a_deadline(text: str | None, seconds: float | None) -> None:
    assert parse_deadline(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3 s", "0", "3 GiB", "1.2.3"])
def test_no_deadline(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_deadline(text)
