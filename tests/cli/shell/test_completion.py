"""What shells offer: commands and options, by what bash asks."""

import pytest

from atom.cli.app import main
from atom.cli.shell import options
from atom.graph.profile.devices import DEVICES


def offered(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """For the last word of a line, as bash asks."""
    words = line.split(" ")
    monkeypatch.setenv("_ATOM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        main([])
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("atom pa", {"pause"}),
        ("atom join --pe", {"--peer"}),
        ("atom --ver", {"--version"}),
        ("atom join --peer ", set()),
    ],
)
def test_what_is_offered(
    line: str,
    wanted: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert set(offered(line, monkeypatch, capsys)) == wanted


def test_the_lists_are_those_of_the_program() -> None:
    assert set(options.DEVICES) == set(DEVICES)
