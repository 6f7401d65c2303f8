"""A folder of its own for each test that runs a command there."""

from pathlib import Path

import pytest

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
