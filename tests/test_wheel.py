"""An installation by `pip install .` is complete, and runs without the checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from atom import __version__
from atom.base.build_kernels import library_of, sources

ROOT = Path(__file__).parent.parent
ATOM = ROOT / "atom"
BUILT_FROM = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
"""Beside the package, as in docker/Dockerfile."""
MADE = shutil.ignore_patterns("__pycache__", "*.so", "*.partial")
PIP = ("-m", "pip", "--no-input", "--disable-pip-version-check")
LOADS = """
from atom.swap.host_kernels import host_kernels
from atom.swarm.exchange.codec import chunk_kernels
from atom.swarm.exchange.sparse import highest_level
import atom
host_kernels(), chunk_kernels(), highest_level()
print(atom.__file__)
"""
COMMAND_S = 100.0

pytestmark = pytest.mark.timeout(3 * COMMAND_S)


def python(*words: str, cwd: Path, **environment: str) -> str:
    """Run Python and return its stdout. Raises: AssertionError with its output if it fails."""
    done = subprocess.run(
        [sys.executable, "-P", *words],
        capture_output=True, text=True, timeout=COMMAND_S, check=False, cwd=cwd,
        env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied(checkout: Path) -> Path:
    """Copy what a package is built from: setuptools leaves things beside what it builds, and takes
    up what lies there."""
    shutil.copytree(ATOM, checkout / "atom", ignore=MADE)
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, checkout)
    return checkout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing is downloaded, since PyTorch brings setuptools along."""
    checkout, out = copied(tmp_path_factory.mktemp("checkout")), tmp_path_factory.mktemp("out")
    alone = ("--no-deps", "--no-index", "--no-build-isolation")
    python(*PIP, "wheel", *alone, "--wheel-dir", str(out), str(checkout), cwd=out)
    (path,) = out.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing else in it."""
    target = tmp_path_factory.mktemp("installed")
    alone = ("--no-deps", "--no-index", "--target", str(target))
    python(*PIP, "install", *alone, str(wheel), cwd=wheel.parent)
    return target


def test_the_wheel_has_every_file_of_the_package_and_its_libraries(wheel: Path) -> None:
    ours = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in ATOM.rglob("*")
        if path.is_file() and not MADE(str(path.parent), [path.name, path.parent.name])
    }
    assert {"atom/py.typed", "atom/cli/demo/demo.toml", "atom/base/kernel.h"} <= set(ours)
    with ZipFile(wheel) as archive:
        theirs = {name: archive.read(name) for name in archive.namelist() if "-info/" not in name}
    assert "-py3-none-linux" in wheel.name, "one for every Python"
    libraries = {library_of(source).relative_to(ROOT).as_posix() for source in sources()}
    assert set(theirs) == set(ours) | libraries
    assert {name: theirs[name] for name in ours} == ours


def test_it_runs_from_where_it_was_installed(installed: Path, tmp_path: Path) -> None:
    there = {
        "PYTHONPATH": str(installed), "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    where = python("-c", LOADS, cwd=tmp_path, **there)
    assert Path(where.strip()) == installed / "atom" / "__init__.py"
    assert python("-m", "atom", "--version", cwd=tmp_path, **there).strip() == __version__
    assert "atom demo" in python(str(installed / "bin" / "atom"), "--help", cwd=tmp_path, **there)


def test_an_editable_installation_is_found_beside_a_clone_named_atom(tmp_path: Path) -> None:
    """A plain path: a finder of setuptools would come after the folder of the clone."""
    clone = copied(tmp_path / "atom")
    build = (
        "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
    )
    python("-c", build, str(tmp_path), cwd=clone)
    (built,) = tmp_path.glob("*.whl")
    with ZipFile(built) as archive:
        (path,) = (archive.read(name) for name in archive.namelist() if "-info/" not in name)
    assert Path(path.decode().strip()) == clone


@pytest.mark.parametrize("version", ["3.10.13", "3.14.0"])
def test_another_python_is_told_before_anything_is_installed(tmp_path: Path, version: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "setup.py", "atom/base/build_kernels.py",
                 "atom/base/kernel.h"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    other = tmp_path / "other-python"
    other.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo Python {version} || exit 1\n')
    other.chmod(0o755)
    done = subprocess.run(
        ["make", ".venv", f"PYTHON={other}"], capture_output=True, text=True, check=False,
        timeout=COMMAND_S, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode != 0
    assert f"error: Python {version} was found, but Atom needs Python 3.11 to 3.13" in done.stderr
    assert not (tmp_path / ".venv").exists()
