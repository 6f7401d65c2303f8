"""A key that the disk did not take is said, and no part of it is taken for a key."""

import errno
import os
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.swarm.identity import Identity, is_peer_id


def test_a_full_disk_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "identity.key"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"identity\.key: the disk is full"):
            Identity.load_or_create(path)
    assert not path.exists()
    assert Identity.load_or_create(path).peer_id == Identity.load_or_create(path).peer_id
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StorageError, match=r"cannot write .*identity\.key: "):
        Identity.create().save(path / "identity.key")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="not an Ed25519 identity file"):
        Identity.load_or_create(path)


def test_a_peer_has_one_name() -> None:
    name = Identity.create().peer_id
    assert is_peer_id(name)
    for other in (f"{name} ", f"{name}\n", f" {name}", f"1{name}", name[:-1], name.lower(), ""):
        assert not is_peer_id(other)
