"""Whose state directory that is."""

from pathlib import Path

from atom.daemon.state_directory import StateDirectory
from atom.swarm.identity import Identity


def own_identity(state: Path) -> Identity | None:
    """Of the peer that keeps its state there; None: there is none yet. Raises: StorageError."""
    key = StateDirectory(state).identity
    return Identity.load_or_create(key) if key.exists() else None
