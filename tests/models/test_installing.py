"""Commands that a person pastes into whatever shell is open."""

import sys

import pytest

from atom.models.installing import install_extra, install_package, install_version


def test_they_name_the_python_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/my box/python")
    pip = "'/my box/python' -m pip install"
    assert install_extra("hf") == f"{pip} 'atom-swarm[hf]'"
    assert install_package("torch>=2.9") == f"{pip} 'torch>=2.9'"
    assert install_version("torch", "2.9.1") == f"{pip} torch==2.9.1"
