"""Commands that install what is missing: into the Python that runs this, whose folder no shell may
have activated, and in a checkout with the versions that it was tested with.
"""

import shlex
import sys
from pathlib import Path

_DISTRIBUTION = "atom-swarm"
_ABOVE = Path(__file__).resolve().parents[2]
"""Of the package `atom`: a checkout, or a folder of installed packages."""


def install_extra(extra: str) -> str:
    """For one of the optional parts that pyproject.toml names, such as "hf"."""
    if not _is_checkout(_ABOVE):
        return _pip(f"{_DISTRIBUTION}[{extra}]")
    return _pip(*_constraint(), "--editable", f"{_ABOVE}[{extra}]")


def install_package(wanted: str) -> str:
    """For a package that Atom needs, such as "torch>=2.9"."""
    return _pip(*_constraint(), wanted)


def install_version(package: str, version: str) -> str:
    """For the very version that a run has, whichever this checkout was tested with."""
    return _pip(f"{package}=={version}")


def _pip(*arguments: str) -> str:
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *arguments])


def _constraint() -> list[str]:
    return ["--constraint", str(_ABOVE / "constraints.txt")] if _is_checkout(_ABOVE) else []


def _is_checkout(folder: Path) -> bool:
    return (folder / "pyproject.toml").is_file() and (folder / "constraints.txt").is_file()
