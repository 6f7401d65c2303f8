import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from atom.cli.look import watch
from atom.cli.look.watch import screen
from atom.cli.shell.terminal import THEME, draws
from atom.extras.dashboard.feed import Seen
from atom.swarm.chain.commit import Head
from atom.swarm.chain.commit_chain import Ledger, Round
from atom.swarm.records.lease import PeerState, SampleText
from tests.cli.swarm_sights import Sight, sight

LEDGER = Ledger(Head(b"h" * 32, 0, 0, 0, (), ()))


def lines(renderable: object, width: int, height: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, height=height, theme=THEME).print(renderable)
    return file.getvalue().splitlines()


def drawn(shown: Sight, width: int, height: int, problem: str = "") -> list[str]:
    seen = Seen(shown.view, shown.rounds, LEDGER, problem)
    return lines(screen(seen, width, height), width, height)


@pytest.mark.parametrize("height", [12, 40])
def test_what_the_weights_write_takes_one_line(height: int) -> None:
    view = replace(sight(3).view, sample=SampleText(6, "def [bold]x[/]: " + "y" * 140))
    shown = drawn(replace(sight(3), view=view), 60, height)
    (line,) = [line for line in shown if "writes" in line]
    assert line.strip().startswith("round 6 writes  def [bold]x[/]: y")
    assert line.strip().endswith("…")
    assert len(shown) <= height
    assert "Ctrl-C" in shown[-1]


@pytest.mark.parametrize("height", [6, 12])
def test_a_problem_is_seen_on_the_smallest_screen(height: int) -> None:
    shown = drawn(sight(3), 40, height, "the DHT does not answer")
    assert "the DHT does not answer" in "".join(shown[:height])
    assert max(map(len, shown)) <= 40


@pytest.mark.parametrize("width", [50, 120])
@pytest.mark.parametrize("height", [15, 50])
@pytest.mark.parametrize("peers", [1, 30])
def test_the_last_line_stays_on_the_screen_whatever_is_wrong_with_peers(
    width: int, height: int, peers: int
) -> None:
    shown = drawn(sight(peers, void_passes=12, void_cause="loss-not-finite"), width, height)
    assert len(shown) <= height
    assert "Ctrl-C" in shown[-1]
    assert any("void" in line for line in shown)


@pytest.mark.parametrize(("width", "height"), [(60, 24), (200, 60)])
@pytest.mark.parametrize("rounds", [2, 999])
def test_the_curve_has_a_readable_scale_and_leaves_room(
    width: int, height: int, rounds: int
) -> None:
    certified = tuple(Round(n, 2.0 + 3.0 / n, 64, 2, 0, 0) for n in range(1, rounds + 1))
    ledger, held_back = replace(LEDGER, rounds=certified), {2: 4.5, 10**6: 9.0}
    seen = Seen(sight().view, 2000, ledger, validations=held_back)
    shown = lines(screen(seen, width, height), width, height)
    assert len(shown) <= height
    assert "Ctrl-C" in shown[-1]
    text = "\n".join(shown)
    assert "(loss)" in text
    assert "-> (round)" in text
    drawn_rows = [line for line in shown if re.search("[\u2800-\u28ff]", line)]
    assert any("o" in line for line in drawn_rows)
    assert any(re.search("[\u2801-\u28ff]", line) for line in drawn_rows)
    assert "(loss)" not in "".join(lines(screen(seen, 60, 16), 60, 16)), "too small for a curve"


def test_a_crowd_is_cut_and_counted_and_who_has_left_goes_first() -> None:
    whole = sight(30)
    gone = [
        replace(each, state=PeerState.LEFT if number < 25 else each.state)
        for number, each in enumerate(whole.view.peers)
    ]
    said = "".join(drawn(replace(whole, view=replace(whole.view, peers=tuple(gone))), 80, 24))
    assert [each.peer_id[-6:] in said for each in gone[25:]] == [True] * 5
    assert said.count(" left ") == 8
    assert "and 17 more" in said


@pytest.mark.parametrize("kind", ["dumb", "xterm"])
def test_a_dumb_terminal_is_written_to_as_a_file(kind: str) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": kind})
    assert draws(console) == (kind == "xterm")


def test_in_a_pipe_the_swarm_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(watch, "show_status", lambda *given, **options: asked.append(given))
    watch.watch_swarm("an address", None)
    assert asked == [("an address", None)]
