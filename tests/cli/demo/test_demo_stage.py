from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.cli.demo.peer import Stage, run_text
from atom.config.load import load_peer_file, load_run_file, parse_run_text

REPOSITORY = Path(__file__).parents[3]


def test_the_packaged_run_file_is_the_one_in_peers() -> None:
    assert run_text(None) == (REPOSITORY / "peers" / "demo.toml").read_text()


@pytest.mark.parametrize("rounds", [8, 1000])
def test_another_number_of_rounds(rounds: int) -> None:
    usual, run = parse_run_text(run_text(None)), parse_run_text(run_text(rounds))
    assert run.run.rounds == rounds
    assert run.optimizer.warmup_rounds < rounds / 2
    assert run.batch == usual.batch


def test_a_prepared_folder_holds_valid_files(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "demo")
    stage.prepare(None)
    first = stage.state(1)
    assert load_run_file(stage.run_file).run.name == "demo"
    assert load_peer_file(stage.peer_file).device.cpu_threads == 1
    (first / "tokens" / "x").write_text("shared")
    assert (stage.state(2) / "tokens" / "x").read_text() == "shared"


def test_our_own_folder_is_emptied_and_no_link_is_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    stage = Stage(tmp_path / "demo")
    stage.prepare(None)
    old = stage.state(1)
    (stage.root / "link").symlink_to(precious)
    stage.prepare(30)
    assert not old.exists()
    assert load_run_file(stage.run_file).run.rounds == 30
    assert (precious / "thesis.tex").exists()


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StorageError, match="is not empty"):
        Stage(tmp_path).prepare(None)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
