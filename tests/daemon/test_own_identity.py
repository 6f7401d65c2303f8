"""The key in a state directory is read, and never made by who only looks."""

from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.daemon.own_identity import own_identity
from atom.daemon.state_directory import StateDirectory
from atom.swarm.identity import Identity


def test_who_lives_there(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    assert own_identity(state.root) is None
    assert not state.root.exists()
    made = Identity.load_or_create(state.identity)
    found = own_identity(state.root)
    assert found is not None
    assert found.peer_id == made.peer_id
    state.identity.write_bytes(b"no key")
    with pytest.raises(StorageError, match="is not an Ed25519 identity"):
        own_identity(state.root)
