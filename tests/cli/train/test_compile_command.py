"""`atom compile`: two files."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.cli.app import main
from atom.cli.shell.failures import ExitCode
from atom.daemon.fitting import planning

DEMO = str(Path(__file__).parents[3] / "peers" / "demo.toml")
ASSUME = ["--assume", "rtx3060-12g", "--gpu-memory", "20 MB"]
FILES = ("submodels.py", "plan.json")


def compile_into(folder: Path, *arguments: str) -> int:
    return main(["compile", DEMO, *ASSUME, "--out", str(folder), *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_files_that_are_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same rates: how fast this box steps is measured, and moves the schedule."""
    monkeypatch.setattr(planning, "step_elements_per_s", lambda *given: 1e9)
    folder = tmp_path / "new" / "folder"
    assert compile_into(folder) == ExitCode.OK
    assert capsys.readouterr().out.split() == [str(folder / name) for name in FILES]
    written = contents(folder)
    assert set(written) == set(FILES)
    compile(written["submodels.py"], "submodels.py", "exec")
    plan = json.loads(written["plan.json"])["plan"]
    classes = {name for each in plan["sub_models"] for name in each["classes"]}
    assert {"Embedding", "Block"} <= classes
    assert all(f"class {name}(" in written["submodels.py"].decode() for name in classes)
    (folder / "plan.json").write_text("old")
    (folder / "mine.txt").write_text("stays")
    assert compile_into(folder) == ExitCode.OK
    again = contents(folder)
    assert again.pop("mine.txt") == b"stays"
    assert again["submodels.py"] == written["submodels.py"]
    assert json.loads(again["plan.json"])["plan"] == plan


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    heard = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(each) for each in heard]
    yield
    for each, handler in zip(heard, before, strict=True):
        signal.signal(each, handler)


def test_a_file_in_the_folders_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "out"
    place.write_text("mine")
    assert compile_into(place) == ExitCode.STORAGE
    seen = capsys.readouterr()
    assert "is a file, not a folder" in seen.err
    assert "hint:" in seen.err
    assert compile_into(place / "below") == ExitCode.STORAGE
    assert place.read_text() == "mine"


def test_a_folder_in_a_files_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").mkdir()
    (tmp_path / "submodels.py").write_text("mine")
    assert compile_into(tmp_path) == ExitCode.STORAGE
    assert "plan.json is a folder" in capsys.readouterr().err
    assert (tmp_path / "submodels.py").read_text() == "mine"


def test_a_model_that_does_not_fit_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = ["compile", DEMO, "--assume", "h200", "--gpu-memory", "1 MB", "--out", str(folder)]
    assert main(arguments) == ExitCode.DEVICE
    assert "bytes) would do" in capsys.readouterr().err
    assert not folder.exists()


def test_without_a_folder_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", DEMO]) == ExitCode.USAGE
    assert "--out" in capsys.readouterr().err
