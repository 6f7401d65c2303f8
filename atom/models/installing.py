"""Commands that install missing packages into the running Python.

They name its executable, because the user's shell may not have activated its environment.
"""

import shlex
import sys


def install_extra(extra: str) -> str:
    """Return the command for one of the extras in pyproject.toml, such as "hf"."""
    return install_package(f"atom-swarm[{extra}]")


def install_package(wanted: str) -> str:
    """Return the command for a package, such as "torch>=2.9"."""
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", wanted])


def install_version(package: str, version: str) -> str:
    """Return the command for exactly this version of a package."""
    return install_package(f"{package}=={version}")
