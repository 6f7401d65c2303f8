import io
from pathlib import Path

from rich.console import Console
from rich.live import Live

from atom.cli.demo.display import LiveDisplay, Moment, PlainDisplay, StoryLine
from atom.cli.demo.loss_plot import Mark, draw_loss
from atom.cli.demo.report import report
from atom.cli.demo.stage import Stage
from atom.cli.demo.verdict import FINISHED, Check, PeerResult
from atom.cli.shell.terminal import THEME
from tests.cli.swarm_sights import sight

D, E = ("head", "d" * 64), ("head", "e" * 64)
RESULTS = [
    PeerResult("peer 1", "12D3KooWAAAAAA", FINISHED, 100, 3200, 900.0, {100: D}),
    PeerResult("peer 2", "12D3KooWBBBBBB", "killed", 25, 800, 910.0, {25: E}),
    PeerResult("peer 3", "", "", 0, 0, 0.0, {}),
]


def console(**options: object) -> Console:
    return Console(file=io.StringIO(), width=110, theme=THEME, **options)  # type: ignore[arg-type]


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_report_tells_everything(tmp_path: Path) -> None:
    page = console()
    stage = Stage(tmp_path)
    checks = [Check("the loss fell", True, "5 → 2"), Check("identical", False, "digest d, e")]
    page.print(report([StoryLine(1.5, "peer 2 killed")], RESULTS, checks, stage))
    shown = text_of(page)
    for expected in (
        "1.5 s  peer 2 killed", "…AAAAAA", "3,200", "900", "d" * 12, "killed",
        "✓ the loss fell   5 → 2", "✗ identical   digest d, e", "ended by the demo",
    ):  # fmt: skip
        assert expected in shown
    folded = shown.replace("\n", "").replace(" ", "")
    assert str(stage.plot) in folded
    assert str(stage.events) in folded


def test_the_report_fits_an_ordinary_terminal(tmp_path: Path) -> None:
    page = Console(file=io.StringIO(), width=80, theme=THEME)
    page.print(report([], RESULTS[:2], [], Stage(tmp_path)))
    shown = text_of(page)
    for title in ("peer 1", "rounds", "mini-batches", "tokens/s", "d" * 12, "finished"):
        assert title in shown


def test_plain_lines_now_and_then() -> None:
    page = console()
    display = PlainDisplay(page)
    display.say(0.5, "peer 1 starts")
    for tenth in range(200):
        display.show(Moment(tenth / 10, sight(), {}, []))
    lines = text_of(page).splitlines()
    assert lines[0].split() == ["0.5", "s", "peer", "1", "starts"]
    assert len(lines) == 4
    assert "round 7" in lines[1]


def test_the_live_display_keeps_the_story_on_a_small_screen() -> None:
    page = console(height=24, force_terminal=True)
    losses = [(float(number), 5.0 / number) for number in range(1, 30)]
    view = sight(peers=3)
    names = {peer.peer_id: f"peer {n}" for n, peer in enumerate(view.view.peers, 1)}
    with Live(console=page, screen=True, auto_refresh=False) as live:
        display = LiveDisplay(live, limit_s=240.0)
        display.show(Moment(0.0, None, {}, []))
        for number in range(8):
            display.say(float(number), f"event {number}")
        display.show(Moment(62.0, view, names, losses))
    last = text_of(page).rpartition("atom demo")[2]
    assert "1:02" in last
    assert "event 7" in last
    assert "peer 3" in last


def test_the_picture(tmp_path: Path) -> None:
    rounds = [{"event": "round", "round": n, "loss": 5.0 / n} for n in range(1, 40)]
    rounds[19]["validation_loss"] = 1.0
    path = tmp_path / "loss.png"
    draw_loss(
        path, rounds, [Mark(10, "peer 2 killed", True), Mark(20, "peer 4 joined", False)], "x"
    )
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    draw_loss(path, [], [], "nothing")
    assert path.read_bytes().startswith(b"\x89PNG")
