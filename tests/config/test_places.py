"""Default folders: below the home directory, per XDG, and one order for all commands."""

from pathlib import Path

import pytest

from atom.config.places import base_folder, default_state_directory


def test_below_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_state_directory("tiny") == Path("/home/ada/.local/share/atom/tiny")
    assert base_folder("cache") == Path("/home/ada/.cache/atom")


def test_xdg_has_the_last_word_if_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_state_directory("tiny") == Path("/data/atom/tiny")
    assert base_folder("data") == Path("/data/atom")
    assert base_folder("cache") == Path("/home/ada/.cache/atom")
