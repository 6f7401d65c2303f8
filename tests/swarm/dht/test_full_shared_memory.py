"""hivemind makes locks as it is imported, and they take room in /dev/shm, which others fill."""

import asyncio
import errno
import sys
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.swarm.dht.p2pd import NodeSettings, P2pDaemon
from atom.swarm.dht.process import DhtService

NODE = "atom.swarm.dht.node"


class NoRoom:
    """In the place of a finder of modules."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == NODE:
            raise OSError(errno.ENOSPC, "No space left on device")


class Listener:
    """The end of the line to somebody who waits for the node."""

    def write(self, raw: bytes) -> None: ...
    async def drain(self) -> None: ...


def test_no_room_for_its_locks_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begins(*_: object) -> None: ...

    monkeypatch.setattr(P2pDaemon, "start", begins)
    monkeypatch.delitem(sys.modules, NODE, raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoRoom(), *sys.meta_path])
    service = DhtService(None, Listener())  # type: ignore[arg-type]  # it reads nothing
    with pytest.raises(StorageError, match="hivemind cannot be loaded: No space left") as told:
        asyncio.run(service._live(NodeSettings(), P2pDaemon(tmp_path)))
    assert "/dev/shm" in told.value.hint
