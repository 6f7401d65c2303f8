from pathlib import Path

import pytest

from atom.config.places import bootstrap_state_directory, crash_directory, default_state_directory


def test_below_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_state_directory("tiny") == Path("/home/ada/.local/share/atom/tiny")
    assert crash_directory() == Path("/home/ada/.local/state/atom")


def test_xdg_has_the_last_word_if_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_state_directory("tiny") == Path("/data/atom/tiny")
    assert bootstrap_state_directory().parent == Path("/data/atom")
    assert crash_directory() == Path("/home/ada/.local/state/atom")
