"""A folder of its own for each test that runs a command there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from atom.cli.app import main
from tests.cli.good_run import GOOD_RUN


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with a good run.toml and the homes; output is not folded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "run.toml").write_text(GOOD_RUN)
    return tmp_path


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs a command, and checks that it is refused with a hint and leaves
    nothing behind. It returns the error."""

    def run(arguments: list[str], code: int) -> str:
        before = sorted(folder.rglob("*"))
        ended = main(arguments)
        streams = capsys.readouterr()
        error, _, hint = streams.err.partition("\nhint:  ")
        assert ended == code, (arguments, streams.err)
        assert error.startswith("error: "), streams.err
        assert len(hint) > 8, error
        assert "Traceback" not in streams.err
        assert "\x1b" not in streams.err
        assert max(map(len, streams.err.splitlines())) < 600, "a long value is cut"
        assert streams.out == ""
        assert sorted(folder.rglob("*")) == before
        return error

    return run
