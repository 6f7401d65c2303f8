"""The README still says, in this order, what `make walk` does."""

from pathlib import Path

from readme_walk import README, read_steps

from atom.config.load import load_peer_file


def test_the_readme_founds_a_run_and_joins_it(tmp_path: Path) -> None:
    steps = read_steps(README.read_text(encoding="utf-8"))
    (tmp_path / steps.file_name).write_text(steps.file_text)
    network = load_peer_file(tmp_path / steps.file_name).network
    assert network.data_port > 0, "a fixed one, to be opened"
    assert steps.file_name in steps.start
    assert steps.prepare[0] == "make .venv"
    assert steps.join.endswith("atom join ADDRESS --state second")
