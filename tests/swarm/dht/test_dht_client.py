"""The daemon's end of the DHT process: it is started again, and its log stays small."""

import asyncio
import errno
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom.base.errors import StorageError
from atom.base.events import EventList
from atom.swarm.dht import client as client_module
from atom.swarm.dht.client import DhtClient, DirectoryUnavailable, keep_small, open_node_log
from atom.swarm.dht.p2pd import NodeSettings


def test_whatever_a_start_fails_with_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.EMFILE, "Too many open files")
    nonsense = ValueError("a frame that is no object")
    script = [None, full, nonsense, RuntimeError("can't start new thread"), None]
    monkeypatch.setattr(client_module, "FIRST_PAUSE_SECONDS", 0.0)
    events, ended = EventList(), asyncio.Event()

    async def opened(client: Any, _: NodeSettings) -> None:
        problem = script.pop(0)
        if problem is not None:
            raise problem
        client._reading = asyncio.create_task(ended.wait() if len(script) else asyncio.sleep(60.0))

    async def addresses(*_: object) -> list[str]:
        return []

    monkeypatch.setattr(DhtClient, "_open", opened)
    monkeypatch.setattr(DhtClient, "call", addresses)

    async def lose_it_once() -> None:
        client = DhtClient(NodeSettings(), events)
        await client.start()
        ended.set()
        async with asyncio.timeout(60.0):
            await client.restarted.wait()
        await client.close()

    asyncio.run(lose_it_once())
    kinds = [event["event"] for event in events.events]
    failed = ["dht-restart-failed"] * 3
    assert kinds == ["dht-process-ended", *failed, "dht-process-restarted"]
    assert "Too many open files" in events.events[1]["detail"]


def test_a_system_without_another_process_is_no_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async def start() -> None:
        await DhtClient(NodeSettings()).start()

    monkeypatch.setattr(subprocess, "Popen", refused)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(DirectoryUnavailable, match="Resource temporarily unavailable"):
        asyncio.run(start())
    assert len(os.listdir("/proc/self/fd")) == len(before), "nothing is left open"


@pytest.mark.parametrize("no_thread", [False, True])
def test_a_client_that_closes_ends_its_process(
    monkeypatch: pytest.MonkeyPatch, no_thread: bool
) -> None:
    async def refused(*given: object) -> None:
        raise RuntimeError("can't start new thread")

    client: Any = DhtClient(NodeSettings())
    client._writer = SimpleNamespace(transport=SimpleNamespace(abort=lambda: None))
    client._process = process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    if no_thread:
        monkeypatch.setattr(asyncio, "to_thread", refused)
    for _ in range(2):
        asyncio.run(client.close())
    assert process.poll() is not None


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
