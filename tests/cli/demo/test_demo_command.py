import io
import math

import pytest
from rich.console import Console

from atom.cli.demo.command import curve, due, results_table
from atom.cli.demo.peer import FINISHED, KILLED
from atom.cli.demo.verdict import PeerResult


@pytest.mark.parametrize(
    ("round_", "trained", "fates", "kill", "join"),
    [
        (0, 1, ["", "", ""], False, False),
        (24, 3, ["", "", ""], False, False),
        (25, 3, ["", "", ""], True, False),
        (30, 3, ["", KILLED, ""], False, False),
        (50, 3, ["", KILLED, ""], False, True),
        (60, 4, ["", KILLED, "", ""], False, False),
        (60, 2, ["", "", ""], False, True),
        (60, 3, ["", "", ""], True, True),
    ],
)
def test_what_is_due(round_: int, trained: int, fates: list[str], kill: bool, join: bool) -> None:
    assert due(round_, 100, trained, fates) == (kill, join)


def test_a_curve_falls_with_the_loss() -> None:
    assert len(curve(5.0)) > len(curve(2.5)) > 0
    assert curve(math.nan) == ""


def test_the_results_fit_an_ordinary_terminal() -> None:
    page = Console(file=io.StringIO(), width=80)
    results = [
        PeerResult("peer 1", "12D3KooWAAAAAA", FINISHED, 100, 3200, 900.0, {100: ("h", "d" * 64)}),
        PeerResult("peer 3", "", "", 0, 0, 0.0, {}),
    ]
    page.print(results_table(results))
    assert isinstance(page.file, io.StringIO)
    for shown in ("peer 1", "…AAAAAA", "3,200", "900", "d" * 12, FINISHED, "peer 3"):
        assert shown in page.file.getvalue()
