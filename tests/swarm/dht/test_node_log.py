"""What a node says is kept up to a size, while it goes on speaking into the same open file."""

import os
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.swarm.dht import client as client_module
from atom.swarm.dht.client import keep_small, open_node_log


def test_a_full_log_is_emptied_and_its_writer_goes_on_at_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_LOG_BYTES", 100)
    path = tmp_path / "dht.log"
    keep_small(str(path))
    assert not path.exists()
    path.write_bytes(b"before" * 20)
    with open_node_log(str(path)) as held:
        assert path.read_bytes() == b"", "also when a node starts"
        for word, kept in ((b"a", b"a"), (b"b", b""), (b"c", b"c")):
            os.write(held.fileno(), word * 90)
            keep_small(str(path))
            assert path.read_bytes() == kept * 90


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="absent"):
        open_node_log(str(tmp_path / "absent" / "dht.log"))
    with open_node_log(None) as nowhere:
        assert nowhere.name == os.devnull
