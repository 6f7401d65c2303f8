"""A folder of its own for each test that runs a command there."""

from pathlib import Path

import pytest

from tests.cli.good_run import GOOD_RUN


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a good run.toml; homes lie below it, and nobody's words fold."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "run.toml").write_text(GOOD_RUN)
    return tmp_path
