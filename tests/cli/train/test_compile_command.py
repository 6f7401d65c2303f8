"""`atom compile`: three files or none."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from atom.cli.app import main
from atom.cli.shell.exit_codes import ExitCode
from atom.cli.train import compile as compile_command
from atom.cli.train.compile import _write
from atom.daemon.fitting import planning

DEMO = str(Path(__file__).parents[3] / "peers" / "demo.toml")
ASSUME = ["--assume", "rtx3060-12g", "--gpu-memory", "20 MB"]
FILES = {"submodels.py", "plan.json", "schedule.svg"}


def compile_into(folder: Path, *arguments: str) -> int:
    return main(["compile", DEMO, *ASSUME, "--out", str(folder), *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_three_files_that_are_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same rates: how fast this box steps is measured, and moves the schedule."""
    monkeypatch.setattr(planning, "step_elements_per_s", lambda *given: 1e9)
    folder = tmp_path / "new" / "folder"
    assert compile_into(folder) == ExitCode.OK
    assert capsys.readouterr().out.split() == [
        str(folder / name) for name in ("submodels.py", "plan.json", "schedule.svg")
    ]
    written = contents(folder)
    assert set(written) == FILES
    compile(written["submodels.py"], "submodels.py", "exec")
    plan = json.loads(written["plan.json"])["plan"]
    assert len(plan["operations"]) > len(plan["sub_models"]) > len(plan["cuts"])
    assert ElementTree.fromstring(written["schedule.svg"]).tag.endswith("svg")
    (folder / "plan.json").write_text("old")
    (folder / "mine.txt").write_text("stays")
    assert compile_into(folder) == ExitCode.OK
    again = contents(folder)
    assert again.pop("mine.txt") == b"stays"
    assert again["submodels.py"] == written["submodels.py"]
    assert again["schedule.svg"] == written["schedule.svg"]
    assert json.loads(again["plan.json"])["plan"] == plan


def test_an_interruption_raises_only_where_something_is_to_be_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Raised into torch, which calls back while it traces a model, it would abort the process."""
    make_plan, seen = compile_command.make_plan, list[bool]()

    def is_raised() -> None:
        seen.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    monkeypatch.setattr(
        compile_command, "make_plan", lambda request: (is_raised(), make_plan(request))[1]
    )
    monkeypatch.setattr(compile_command, "_write", lambda *given: is_raised())
    assert compile_into(tmp_path / "out") == ExitCode.OK
    assert seen == [False, True]


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


def test_when_the_disk_is_full_everything_is_as_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "plan.json").write_text("old")
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "schedule" in path.name:
            raise OSError(28, os.strerror(28), str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert compile_into(folder) == ExitCode.STORAGE
    assert "the disk is full" in capsys.readouterr().err
    assert contents(folder) == {"plan.json": b"old"}
    assert compile_into(tmp_path / "a" / "b") == ExitCode.STORAGE
    assert not (tmp_path / "a").exists()


def test_a_folder_in_a_files_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").mkdir()
    (tmp_path / "submodels.py").write_text("mine")
    assert compile_into(tmp_path) == ExitCode.STORAGE
    assert "plan.json is a folder" in capsys.readouterr().err
    assert (tmp_path / "submodels.py").read_text() == "mine"


def test_interrupted_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    write = Path.write_bytes

    def interrupted(path: Path, content: bytes) -> int:
        if "schedule" in path.name:
            raise KeyboardInterrupt
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _write(folder, {"plan.json": b"", "schedule.svg": b""})
    assert not folder.exists()


def test_a_model_that_does_not_fit_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    arguments = ["compile", DEMO, "--assume", "h200", "--gpu-memory", "1 MB", "--out", str(folder)]
    assert main(arguments) == ExitCode.DEVICE
    assert "the least that would do" in capsys.readouterr().err
    assert not folder.exists()


def test_without_a_folder_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", DEMO]) == ExitCode.USAGE
    assert "--out" in capsys.readouterr().err
