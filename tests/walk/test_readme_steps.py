"""The README still says, in this order, what `make walk` does."""

from pathlib import Path

import pytest
from readme_steps import HEADING, README, read_steps

from atom.config.load import load_peer_file

FILE = "```toml\n# a.toml\n```\n"
START, JOIN = "```\nmake\natom start a\n```\n", "```\natom join ADDRESS --state b\n```\n"


def page(*blocks: str) -> str:
    return f"# Atom\n\n{HEADING}\n\n{''.join(blocks)}"


def test_the_readme_founds_a_run_and_joins_it(tmp_path: Path) -> None:
    steps = read_steps(README.read_text(encoding="utf-8"))
    (name,) = steps.files
    (tmp_path / name).write_text(steps.files[name])
    network = load_peer_file(tmp_path / name).network
    assert steps.ports == [int(network.listen.partition(":")[2]), network.data_port]
    assert name in steps.start
    assert steps.prepare[0] == "make .venv"
    assert steps.join_at("/ip4/…").endswith("atom join /ip4/… --state second")
    assert steps.second_state == "second"


@pytest.mark.parametrize(
    "blocks",
    [
        (),
        (FILE.replace("# a", "a"), START, JOIN),
        (FILE, START),
        (FILE, JOIN, START),
        (FILE, START, JOIN.replace("ADDRESS", "IT")),
        (START, JOIN),
        (FILE, START, "## Another\n", JOIN),
    ],
)
def test_a_page_that_says_it_otherwise_is_refused(blocks: tuple[str, ...]) -> None:
    assert read_steps(page(FILE, START, JOIN)).start == "atom start a"
    with pytest.raises(ValueError, match=HEADING):
        read_steps(page(*blocks))
