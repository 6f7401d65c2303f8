"""Default folders: below the home directory, per XDG, and one order for all commands."""

import pwd
from pathlib import Path

import pytest

from atom.base.errors import StorageError
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


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover a container that runs under a bare user number."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_state_directory("tiny") == Path("/data/atom/tiny")
    with pytest.raises(StorageError, match="no home directory") as problem:
        base_folder("cache")
    assert "XDG_CACHE_HOME" in problem.value.hint
