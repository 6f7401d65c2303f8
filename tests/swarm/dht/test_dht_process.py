"""The DHT process with real processes: how it starts, fails, and above all how it ends."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from dht_stock import end_all, stock_node, wait_until_gone

from atom.base.errors import AddressError, PortInUseError, UserError
from atom.swarm.addresses import parse_listen
from atom.swarm.dht import client as client_module
from atom.swarm.dht import p2pd, process
from atom.swarm.dht.client import DhtClient
from atom.swarm.dht.directory import entrance
from atom.swarm.dht.p2pd import NodeSettings, running_p2pd
from atom.swarm.dht.process import DhtService, until_clock_is_set_back
from atom.swarm.identity import Identity
from atom.swarm.records.store import DirectoryUnavailable
from tests.event_list import EventList

pytestmark = pytest.mark.timeout(180)
SOON = 60.0
PEER = Identity.create().peer_id

PARENT = """
import asyncio, threading
from atom.swarm.dht.client import DhtClient
from atom.swarm.dht.p2pd import NodeSettings

async def main():
    client = DhtClient(NodeSettings())
    await client.start()
    print(client._process.pid, flush=True)
    await asyncio.Event().wait()

threading.Thread(target=asyncio.run, args=(main(),)).start()
"""


DEAFENED = """
import os, sys
from atom.swarm.dht import process
from atom.swarm.dht.node import DhtNode

async def addresses(node):
    node._p2p._client.control._read_task.cancel()
    return ["deaf"]

DhtNode.addresses = addresses
process.main(sys.argv[1:])
os._exit(0)
"""


def family_of(client: DhtClient) -> tuple[psutil.Process, psutil.Process]:
    """The node and its p2pd."""
    assert client._process is not None
    node = psutil.Process(client._process.pid)
    (p2pd,) = node.children()
    return node, p2pd


async def restart_of(client: DhtClient) -> None:
    async with asyncio.timeout(SOON):
        await client.restarted.wait()
    client.restarted.clear()


def test_sigkill_of_the_daemon_leaves_no_process() -> None:
    """Not even stopped ones, which would not see that their socket is closed."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as process:
        pids: list[int] = []
        try:
            assert process.stdout is not None
            node = psutil.Process(int(process.stdout.readline()))
            pids = [node.pid, *(each.pid for each in node.children(recursive=True))]
            assert len(pids) == 2, "the node and its p2pd"
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            process.kill()
            assert wait_until_gone(pids) == []
        finally:
            process.kill()
            end_all(pids)


def test_a_node_is_replaced_at_its_port_whatever_ends_it_and_goes_with_its_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node may become deaf, lose its p2pd, or freeze. Malformed requests and signals
    of the terminal end no node."""
    assert 3 < client_module.MAX_UNANSWERED < 10
    monkeypatch.setattr(client_module, "CONTACTS_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(client_module, "MAX_LOG_BYTES", 1000)
    events, log = EventList(), tmp_path / "dht.log"

    async def check() -> None:
        client = DhtClient(NodeSettings(log_path=str(log)), events)
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "PROGRAM", ("-c", DEAFENED))
            await client.start()
        try:
            assert await client.call("addresses") == ["deaf"]
            await restart_of(client)
            node, p2pd = family_of(client)
            assert os.getsid(node.pid) != os.getsid(0)
            [before] = await answers_in_spite_of_nonsense(client, node)

            p2pd.kill()
            await restart_of(client)
            assert not node.is_running()

            log.write_bytes(b"x" * 2000)
            async with asyncio.timeout(SOON):
                while log.stat().st_size >= 2000:
                    await asyncio.sleep(0.01)
            monkeypatch.setattr(client_module, "MAX_UNANSWERED", 1)
            still, _ = family_of(client)
            still.suspend()
            with pytest.raises(DirectoryUnavailable, match=r"^contacts: no answer from the DHT$"):
                await client.call("contacts", 0.0)
            monkeypatch.setattr(client_module, "STOP_SECONDS", 0.1)
            await restart_of(client)
            assert not still.is_running()
            monkeypatch.undo()
            [after] = await client.call("addresses", 5)
            assert after.rpartition("/p2p/")[0] == before.rpartition("/p2p/")[0]
        finally:
            family = family_of(client)
            await client.close()
        assert wait_until_gone([each.pid for each in family]) == []
        assert client._process is not None
        assert client._process.returncode == 0, "it ends by itself when it is hung up on"
        assert client._folder is not None
        assert not client._folder.exists()
        await client.close()

    asyncio.run(check())
    told = [each["event"] for each in events.events]
    told = [each for each in told if each != "dht-restart-failed"]  # its port was still taken
    assert told == ["dht-process-ended", "dht-process-restarted"] * 3


async def answers_in_spite_of_nonsense(client: DhtClient, node: psutil.Process) -> list[str]:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        node.send_signal(number)
    place = {"key": "key", "subkey": PEER, "expires_at": 9e9}
    for size in (8193, 1_000_000):
        with pytest.raises(DirectoryUnavailable, match="AssertionError"):
            await client.call("store", 5, record=bytes(size), **place)
    for call in ("fetch", "no-such-call"):
        with pytest.raises(DirectoryUnavailable):
            await client.call(call, 5, key="nonsense", deadline_s="nonsense")
    addresses: list[str] = await client.call("addresses", 5)
    return addresses


async def failure(settings: NodeSettings) -> AddressError | PortInUseError:
    """The error of a start that must fail, quickly, and leave no process and no folder."""
    client = DhtClient(settings)
    before = children()
    async with asyncio.timeout(SOON):
        with pytest.raises((AddressError, PortInUseError)) as caught:
            await client.start()
    assert client._folder is None or not client._folder.exists()
    assert children() <= before
    assert caught.value.hint
    return caught.value


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


async def test_starts_that_fail_say_what_is_in_the_way() -> None:
    with stock_node(clock_ahead_s=-100.0) as late:
        assert "100 s ahead" in (await failure(NodeSettings(initial_peers=(late,)))).message
        host_and_port, _, peer_id = late.rpartition("/p2p/")
        error = await failure(NodeSettings(initial_peers=(f"{host_and_port}/p2p/{PEER}",)))
        assert f"another peer ({peer_id})" in error.message
        taken = "127.0.0.1:" + host_and_port.split("/")[4]
        for listen, kind in ((taken, PortInUseError), ("192.0.2.1:0", AddressError)):
            error = await failure(NodeSettings(listen=listen))
            assert isinstance(error, kind)
            assert "[network] listen" in error.hint


async def test_who_is_told_to_stop_waits_for_no_silent_entrance(tmp_path: Path) -> None:
    before = children()

    async def serve(address: str) -> None:
        settings = NodeSettings(str(tmp_path / "identity"), initial_peers=(address,))
        async with entrance(settings, EventList()):
            raise AssertionError("no node answers there")

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{PEER}"
        serving = asyncio.create_task(serve(address))
        while not children() - before:
            await asyncio.sleep(0.01)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert children() <= before


# ---- without processes


LISTEN = parse_listen("127.0.0.1:0")


async def failing_soon(problem: BaseException) -> None:
    raise problem


def test_a_chore_that_fails_runs_again_though_its_log_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "REDIAL_SECONDS", 0.001)
    service = DhtService(None, None)  # type: ignore[arg-type]  # it calls no node
    script = iter([ConnectionError("nobody there")] * 3)  # the end of it is no mere failure
    node: Any = SimpleNamespace(redial=lambda: failing_soon(next(script, SystemExit())))
    full = open("/dev/full", "w")  # noqa: SIM115 - closed below, which fails as well
    with contextlib.redirect_stderr(full), pytest.raises(SystemExit):
        asyncio.run(service._redial(node))
    with contextlib.suppress(OSError):
        full.close()


async def test_only_a_step_back_of_the_clock_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CLOCK_EVERY_SECONDS", 0.0)
    ahead_s = iter([50.0, 50.0, 49.5, 49.0, 900.0, 899.5, 898.0, 898.0])
    await until_clock_is_set_back(wall=lambda: next(ahead_s), steady=lambda: 0.0)
    assert list(ahead_s) == [898.0]


def test_a_libp2p_daemon_that_ends_at_once_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with running_p2pd(tmp_path, NodeSettings(log_path="dht.log"), LISTEN):
            raise AssertionError("there is none")

    monkeypatch.setattr(p2pd, "_binary", lambda: "/bin/false")
    with pytest.raises(UserError, match="stopped while starting") as caught:
        asyncio.run(run())
    assert caught.value.hint == "see dht.log"
