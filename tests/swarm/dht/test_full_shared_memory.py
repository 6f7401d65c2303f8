"""hivemind makes locks as it is imported, and they take room in /dev/shm, which others fill."""

import asyncio
import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from atom.swarm.dht.p2pd import P2pDaemon
from atom.swarm.dht.process import DhtService, message_line

NODE = "atom.swarm.dht.node"


class NoRoom:
    """In the place of a finder of modules."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == NODE:
            raise OSError(errno.ENOSPC, "No space left on device")


class Listener:
    """The end of the line to somebody who waits for the node."""

    def __init__(self) -> None:
        self.told = b""

    def write(self, raw: bytes) -> None:
        self.told += raw

    async def drain(self) -> None: ...


def test_no_room_for_its_locks_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begins(*_: object) -> None: ...

    async def start(listener: Any) -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(message_line({}))
        await DhtService(reader, listener).run(tmp_path)

    monkeypatch.setattr(P2pDaemon, "start", begins)
    monkeypatch.delitem(sys.modules, NODE, raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoRoom(), *sys.meta_path])
    listener = Listener()
    asyncio.run(start(listener))
    kind, words, hint = json.loads(listener.told)["failed"]
    assert (kind, words) == ("StorageError", "the DHT node cannot start: No space left on device")
    assert "/dev/shm" in hint
