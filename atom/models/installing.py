"""Commands that install what is missing into the Python that runs this, whose folder no shell may
have activated.
"""

import shlex
import sys


def install_extra(extra: str) -> str:
    """For one of the optional parts that pyproject.toml names, such as "hf"."""
    return install_package(f"atom-swarm[{extra}]")


def install_package(wanted: str) -> str:
    """For a package, such as "torch>=2.9"."""
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", wanted])


def install_version(package: str, version: str) -> str:
    """For the very version that a run has."""
    return install_package(f"{package}=={version}")
