"""The DHT process and its p2pd, where disks are full, a clock is set back, or something lacks."""

import asyncio
import contextlib
import errno
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.base.errors import UserError
from atom.swarm.addresses import parse_listen
from atom.swarm.dht import p2pd, process
from atom.swarm.dht.p2pd import NodeSettings, P2pDaemon
from atom.swarm.dht.process import DhtService, message_line, until_clock_is_set_back

TALKATIVE = "#!/bin/sh\necho 'Peer ID: me'\nexec head -c 10000000 /dev/zero\n"
"""Says more than a pipe and its reader hold, then ends."""
SOON = 20.0


@contextlib.contextmanager
def full_log() -> Iterator[None]:
    full = open("/dev/full", "w")  # noqa: SIM115 - closed below, which fails as well
    try:
        with contextlib.redirect_stderr(full):
            yield
    finally:
        with contextlib.suppress(OSError):
            full.close()


def test_the_libp2p_daemon_is_read_from_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "p2pd"
    program.write_text(TALKATIVE)
    program.chmod(0o700)
    monkeypatch.setattr(p2pd, "_binary", lambda: str(program))

    async def check() -> None:
        daemon = P2pDaemon(tmp_path)
        await daemon.start(NodeSettings(), parse_listen("127.0.0.1:0"))
        try:
            async with asyncio.timeout(SOON):
                await daemon.wait()
        finally:
            await daemon.stop(gently=False)

    with full_log():
        asyncio.run(check())


def test_a_chore_that_fails_runs_again_all_the_same() -> None:
    class Unlucky:
        def __init__(self) -> None:
            self.tries = 0
            self.again = asyncio.Event()

        async def redial(self) -> None:
            self.tries += 1
            if self.tries > 1:
                self.again.set()
            raise ConnectionError("nobody there")

    async def check() -> None:
        node: Any = Unlucky()
        service = DhtService(None, None)  # type: ignore[arg-type]  # it asks nobody
        chore = asyncio.create_task(service._redial(node, every_s=0.001))
        async with asyncio.timeout(SOON):
            await node.again.wait()
        chore.cancel()

    with full_log():
        asyncio.run(check())


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


def test_only_a_step_back_of_the_clock_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CLOCK_EVERY_SECONDS", 0.0)
    ahead_s = iter([50.0, 50.0, 49.5, 49.0, 900.0, 899.5, 898.0, 898.0])
    asyncio.run(until_clock_is_set_back(wall=lambda: next(ahead_s), steady=lambda: 0.0))
    assert list(ahead_s) == [898.0]


def test_without_hivemind_the_hint_leads_to_the_command_for_this_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="hivemind is not installed") as caught:
        asyncio.run(P2pDaemon(tmp_path).start(NodeSettings(), parse_listen("127.0.0.1:0")))
    assert "atom doctor" in caught.value.hint
