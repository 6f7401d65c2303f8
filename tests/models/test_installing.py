"""Commands that a person pastes into whatever shell is open."""

import sys
from pathlib import Path

import pytest

from atom.models import installing
from atom.models.installing import install_extra, install_package, install_version


def test_in_a_checkout_with_what_it_was_tested_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "my atom"
    checkout.mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        (checkout / name).touch()
    monkeypatch.setattr(installing, "_ABOVE", checkout)
    monkeypatch.setattr(sys, "executable", "/a/.venv/bin/python")
    pip = "/a/.venv/bin/python -m pip install"
    constraint = f"--constraint '{checkout}/constraints.txt'"
    assert install_extra("hf") == f"{pip} {constraint} --editable '{checkout}[hf]'"
    assert install_package("torch>=2.9") == f"{pip} {constraint} 'torch>=2.9'"
    assert install_version("torch", "2.9.1") == f"{pip} torch==2.9.1", "whatever is tested here"


def test_elsewhere_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "_ABOVE", tmp_path)
    monkeypatch.setattr(sys, "executable", "/b/python")
    assert install_extra("data") == "/b/python -m pip install 'atom-swarm[data]'"
    assert install_package("blake3>=1.0") == "/b/python -m pip install 'blake3>=1.0'"


def test_this_is_a_checkout() -> None:
    assert f"{Path(__file__).parents[2]}[gpu]" in install_extra("gpu")
