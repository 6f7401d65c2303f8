"""The DHT's client and process where disks are full, a clock is set back, or something lacks."""

import asyncio
import contextlib
import errno
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom.base.errors import UserError
from atom.swarm.addresses import parse_listen
from atom.swarm.dht import client as client_module
from atom.swarm.dht import p2pd, process
from atom.swarm.dht.client import DhtClient
from atom.swarm.dht.p2pd import NodeSettings, running_p2pd
from atom.swarm.dht.process import DhtService, until_clock_is_set_back
from tests.event_list import EventList

SOON = 20.0
LISTEN = parse_listen("127.0.0.1:0")


async def failing_soon(problem: BaseException) -> None:
    raise problem


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
        client._reading = asyncio.create_task(ended.wait() if script else asyncio.sleep(SOON))

    monkeypatch.setattr(DhtClient, "_open", opened)
    monkeypatch.setattr(DhtClient, "call", lambda *_: asyncio.sleep(0.0, []))

    async def lose_it_once() -> None:
        client = DhtClient(NodeSettings(), events)
        await client.start()
        ended.set()
        async with asyncio.timeout(SOON):
            await client.restarted.wait()
        await client.close()

    asyncio.run(lose_it_once())
    kinds = [event["event"] for event in events.events]
    failed = ["dht-restart-failed"] * 3
    assert kinds == ["dht-process-ended", *failed, "dht-process-restarted"]
    assert "Too many open files" in events.events[1]["detail"]


def test_a_chore_that_fails_runs_again_though_its_log_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "REDIAL_SECONDS", 0.001)
    service = DhtService(None, None)  # type: ignore[arg-type]  # it asks nobody
    script = iter([ConnectionError("nobody there")] * 3)  # the end of it is no mere failure
    node: Any = SimpleNamespace(redial=lambda: failing_soon(next(script, SystemExit())))
    full = open("/dev/full", "w")  # noqa: SIM115 - closed below, which fails as well
    with contextlib.redirect_stderr(full), pytest.raises(SystemExit):
        asyncio.run(service._redial(node))
    with contextlib.suppress(OSError):
        full.close()


def test_only_a_step_back_of_the_clock_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CLOCK_EVERY_SECONDS", 0.0)
    ahead_s = iter([50.0, 50.0, 49.5, 49.0, 900.0, 899.5, 898.0, 898.0])
    asyncio.run(until_clock_is_set_back(wall=lambda: next(ahead_s), steady=lambda: 0.0))
    assert list(ahead_s) == [898.0]


def test_a_libp2p_daemon_that_is_not_there_or_ends_at_once_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running_p2pd(tmp_path, NodeSettings(log_path="dht.log"), LISTEN):
            raise AssertionError("there is none")

    def start() -> None:
        asyncio.run(run())

    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UserError, match="hivemind is not installed") as caught:
            start()
        assert "atom doctor" in caught.value.hint
    monkeypatch.setattr(p2pd, "_binary", lambda: "/bin/false")
    with pytest.raises(UserError, match="ended while starting") as caught:
        start()
    assert caught.value.hint == "see dht.log"
