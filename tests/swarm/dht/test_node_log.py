"""What a node says is kept, up to a size, while it goes on speaking into the same open file."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.swarm.dht import client as client_module
from atom.swarm.dht.client import (
    MAX_LOG_BYTES,
    DhtClient,
    keep_small,
    open_node_log,
)
from atom.swarm.dht.p2pd import NodeSettings


def test_a_full_log_is_set_aside_and_its_writer_goes_on_at_the_beginning(tmp_path: Path) -> None:
    path, older = tmp_path / "dht.log", tmp_path / "dht.1.log"
    with open_node_log(str(path)) as held:
        for word, kept in ((b"a", b""), (b"b", b"a" * 90 + b"b" * 90), (b"c", b""), (b"d", b"")):
            os.write(held.fileno(), word * 90)
            keep_small(str(path), max_bytes=100)
            assert path.stat().st_size <= 100
            if kept:
                assert older.read_bytes() == kept[-100:]
    assert path.read_bytes() == b""
    assert older.read_bytes() == b"c" * 10 + b"d" * 90, "in the place of the one before"
    assert {each.name for each in tmp_path.iterdir()} == {"dht.log", "dht.1.log"}


def test_where_nothing_can_be_set_aside_the_log_stays_small_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "dht.log"
    (tmp_path / "dht.1.log").mkdir()
    keep_small(str(path), max_bytes=10)
    assert not path.exists()
    path.write_bytes(b"x" * 11)
    keep_small(str(path), max_bytes=10)
    assert path.read_bytes() == b""


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="absent"):
        open_node_log(str(tmp_path / "absent" / "dht.log"))
    with open_node_log(None) as nowhere:
        assert nowhere.name == os.devnull


@pytest.mark.timeout(180)
def test_a_node_s_log_is_looked_at_when_it_starts_and_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, older = tmp_path / "dht.log", tmp_path / "dht.1.log"
    path.write_bytes(b"before" + b"." * MAX_LOG_BYTES)
    looked = threading.Semaphore(0)

    def seen(log_path: str | None) -> None:
        keep_small(log_path)
        looked.release()

    monkeypatch.setattr(client_module, "keep_small", seen)
    monkeypatch.setattr(client_module, "CONTACTS_EVERY_SECONDS", 0.05)

    async def live() -> None:
        client = DhtClient(NodeSettings(log_path=str(path)))
        await client.start()
        try:
            assert older.read_bytes() == b"." * MAX_LOG_BYTES
            with path.open("ab") as file:
                file.write(b"x" * (MAX_LOG_BYTES + 1))
            while path.stat().st_size > MAX_LOG_BYTES:
                assert await asyncio.to_thread(looked.acquire, timeout=60.0)
        finally:
            await client.close()

    asyncio.run(live())
    assert older.read_bytes() == b"x" * MAX_LOG_BYTES
