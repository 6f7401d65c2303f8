"""A DHT process that cannot be started just now is started later, whatever it failed with."""

import asyncio
import errno
import os
import subprocess
from typing import Any, ClassVar

import pytest

from atom.base.events import EventList
from atom.swarm.dht import supervisor
from atom.swarm.dht.client import DhtClient, DirectoryUnavailable
from atom.swarm.dht.frames import NodeSettings
from atom.swarm.dht.supervisor import SteadyClient


class ScriptedClient:
    """Starts fail as the script says, one after the other."""

    script: ClassVar[list[Exception | None]] = []

    def __init__(self, settings: NodeSettings) -> None:
        self.ended = asyncio.Event()

    async def start(self) -> None:
        problem = self.script.pop(0)
        if problem is not None:
            raise problem

    async def call(self, name: str, timeout_s: float, **args: Any) -> dict[str, Any]:
        return {"addresses": []}

    async def close(self) -> None:
        self.ended.set()


def test_whatever_a_start_fails_with_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.EMFILE, "Too many open files")
    nonsense = ValueError("a frame that is no object")
    script = [None, full, nonsense, RuntimeError("can't start new thread"), None]
    monkeypatch.setattr(ScriptedClient, "script", script)
    monkeypatch.setattr(supervisor, "DhtClient", ScriptedClient)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.0)
    events = EventList()

    async def lose_it_once() -> None:
        steady = SteadyClient(NodeSettings(), events)
        await steady.start()
        steady._client.ended.set()
        async with asyncio.timeout(60.0):
            await steady.restarted.wait()
        await steady.close()

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
def test_whatever_the_line_ended_with_its_process_is_ended(
    monkeypatch: pytest.MonkeyPatch, no_thread: bool
) -> None:
    class BrokenLine:
        def close(self) -> None: ...

        async def wait_closed(self) -> None:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    async def refused(*given: object) -> None:
        raise RuntimeError("can't start new thread")

    client: Any = DhtClient(NodeSettings())
    client._writer = BrokenLine()
    client._process = process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    if no_thread:
        monkeypatch.setattr(asyncio, "to_thread", refused)
    for _ in range(2):
        asyncio.run(client.close())
    assert process.poll() is not None
