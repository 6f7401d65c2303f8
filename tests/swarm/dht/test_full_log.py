"""A log that takes no more words, since its disk is full, ends nothing of the DHT node."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atom.swarm.addresses import parse_listen
from atom.swarm.dht import p2pd
from atom.swarm.dht.p2pd import NodeSettings, P2pDaemon
from atom.swarm.dht.process import DhtService

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
