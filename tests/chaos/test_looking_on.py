"""A real run, seen from outside: drawn from its chain, and watched on a terminal."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from swarm_of_processes import START_S, Swarm, atom_command, endless, environment, swarm_in
from terminal import ALTERNATE, CURSOR, terminal

pytestmark = pytest.mark.timeout(4 * START_S)

ROUNDS = 6
LOSS_LINE = (0x1F, 0x6F, 0xB4)
"""Its colour in the picture."""
SVG = "{http://www.w3.org/2000/svg}"
CHART, LAST_LINE = "loss (nats per token) by round", "Ctrl-C ends the display"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """Of one peer, which stands still after some rounds: the machine is for those who look."""
    with swarm_in(tmp_path_factory.mktemp("run"), endless("seen", 2, 50), ["ada"]) as swarm:
        swarm.found()
        swarm.until(lambda: swarm.is_gathered() and swarm.address, "its address", START_S)
        swarm.resume()
        peer = swarm.founder
        swarm.until(lambda: peer.last_round >= ROUNDS, "some rounds", START_S)
        peer.control.pause()
        yield swarm


def plotted(run: Swarm, file: Path) -> int:
    """How many rounds are on it, by the command's word."""
    done = atom_command(run.root, "plot", str(file), run.address)
    assert done.returncode == 0, done.stderr
    told = re.fullmatch(rf"{re.escape(str(file))}: seen, rounds 1 to (\d+)\n", done.stdout)
    assert told, done.stdout
    assert int(told[1]) >= ROUNDS
    return int(told[1])


def test_a_drawing_of_the_chain_has_the_loss_of_every_round(run: Swarm, tmp_path: Path) -> None:
    count = plotted(run, tmp_path / "run.svg")
    losses = [event["loss"] for event in run.founder.rounds[:count]]
    root = ElementTree.parse(tmp_path / "run.svg").getroot()
    lines = [re.findall(r"[ML] (\S+) (\S+)", path.get("d", "")) for path in root.iter(f"{SVG}path")]
    drawn = [[float(y) for _, y in line] for line in lines if len(line) == count]
    falling = [line for line in drawn if min(line) < max(line)]
    assert any(np.corrcoef(line, losses)[0, 1] < -0.9999 for line in falling), "downwards in SVG"


def test_a_picture_of_the_chain_shows_the_line(run: Swarm, tmp_path: Path) -> None:
    plotted(run, tmp_path / "run.png")
    pixels = matplotlib.image.imread(tmp_path / "run.png")
    assert pixels.ndim == 3
    blue = np.abs(255 * pixels[..., :3] - LOSS_LINE).max(axis=2) < 40
    columns = np.flatnonzero(blue.any(axis=0))
    assert columns[-1] - columns[0] > pixels.shape[1] / 2, "over the rounds"
    assert np.flatnonzero(blue.any(axis=1)).size > pixels.shape[0] / 10, "and it falls"


def test_a_watched_terminal_is_resized(run: Swarm) -> None:
    words = (sys.executable, "-P", "-m", "atom", "watch", run.address)
    with terminal(words, environment(run.root), (100, 40), START_S) as seen:
        settings = seen.settings
        assert LAST_LINE in seen.fitting(100, 40, CHART).text
        for size, words_shown in (
            ((40, 10), ("seen   round",)),
            ((60, 14), ("seen   round", LAST_LINE)),
            ((20, 5), ("seen",)),
            ((1, 1), ()),
            ((200, 60), (CHART, LAST_LINE)),
            ((80, 24), (CHART, LAST_LINE)),
        ):
            seen.resize(*size)
            shown = seen.fitting(*size)
            assert all(word in shown.text for word in words_shown), shown.text
        seen.press(b"\x03")
        ended = seen.end(80, 24)
        assert seen.settings == settings
    assert ended.code == 0
    assert CURSOR in ended.modes
    assert ALTERNATE not in ended.modes
    assert "seen   round" in ended.left, "what was seen last stays"
