"""The DHT process with real processes: how it starts, fails, and above all how it ends."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from dht_stock import end_all, stock_node, wait_until_gone

from atom.base.errors import AddressError, PortInUseError
from atom.swarm.dht import client as client_module
from atom.swarm.dht.client import DhtClient, DirectoryUnavailable
from atom.swarm.dht.directory import run_bootstrap
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.identity import Identity

pytestmark = pytest.mark.timeout(180)

PARENT = """
import asyncio, sys, threading
from atom.swarm.dht.client import DhtClient
from atom.swarm.dht.p2pd import NodeSettings

async def main():
    client = DhtClient(NodeSettings())
    if sys.argv[2] == "socket":
        client._follow_pid = 0
    await client.start()
    print(client.process_id, client._folder, flush=True)
    await asyncio.Event().wait()

if sys.argv[1] == "main":
    asyncio.run(main())
else:
    threading.Thread(target=asyncio.run, args=(main(),)).start()
"""


@contextlib.contextmanager
def parent(thread="main", tie="kernel"):
    """A daemon-like process with a DHT process: (parent, pids of all below it, folder)."""
    process = subprocess.Popen([sys.executable, "-c", PARENT, thread, tie], stdout=subprocess.PIPE)
    pids = []
    try:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().decode().split()
        pids = [int(pid), *(p.pid for p in psutil.Process(int(pid)).children(recursive=True))]
        assert len(pids) == 2, "the node and its p2pd"
        yield process, pids, Path(folder)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        end_all(pids)


def test_sigkill_of_the_daemon_leaves_no_process():
    with parent() as (process, pids, _folder):
        process.kill()
        assert wait_until_gone(pids) == []


def test_sigkill_of_the_daemon_ends_even_a_stopped_child():
    with parent("thread") as (process, pids, _folder):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        process.kill()
        assert wait_until_gone(pids) == []


def test_without_the_kernels_signal_the_closed_socket_is_enough():
    with parent(tie="socket") as (process, pids, folder):
        assert folder.exists()
        process.kill()
        assert wait_until_gone(pids) == []
        assert not folder.exists()


PEER = Identity.create().peer_id


def test_the_child_ignores_the_terminal_refuses_large_records_and_takes_p2pd_along():
    async def check():
        client = DhtClient(NodeSettings())
        await client.start()
        try:
            child = psutil.Process(client.process_id)
            assert os.getsid(child.pid) != os.getsid(0)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                child.send_signal(number)
            place = {"key": "key", "subkey": PEER, "expires_at": 9e9}
            for size in (8193, 16_000, 1_000_000):
                with pytest.raises(DirectoryUnavailable, match="AssertionError"):
                    await client.call("store", 5, record=bytes(size), **place)
            with pytest.raises(DirectoryUnavailable):
                await client.call("fetch", 5, key="nonsense", deadline_s="nonsense", widely=False)
            with pytest.raises(DirectoryUnavailable):
                await client.call("no-such-call", 5)
            addresses = await client.call("addresses", 5)
            assert addresses[0].startswith("/ip4/127.0.0.1/tcp/")

            [p2pd] = child.children()
            child.kill()
            assert await asyncio.to_thread(wait_until_gone, [p2pd.pid]) == []
            await client.restarted.wait()
            assert client.process_id != child.pid
        finally:
            await client.close()

    asyncio.run(check())


def test_a_node_without_its_p2pd_is_started_again_on_the_same_port():
    async def check():
        client = DhtClient(NodeSettings())
        await client.start()
        try:
            before = await client.call("addresses")
            first = client.process_id
            [p2pd] = psutil.Process(first).children()
            p2pd.kill()
            async with asyncio.timeout(60):
                await client.restarted.wait()
            after = await client.call("addresses")
            assert [a.rpartition("/p2p/")[0] for a in after] == [
                a.rpartition("/p2p/")[0] for a in before
            ]
            assert not psutil.pid_exists(first)
        finally:
            await client.close()
        assert wait_until_gone([client.process_id]) == []

    asyncio.run(check())


DEAFENED = """
import os, sys
from atom.swarm.dht import process
from atom.swarm.dht.node import DhtNode

async def addresses(node):
    node._p2p._client.control.{task}.cancel()
    return ["deaf"]

DhtNode.addresses = addresses
process.main(sys.argv[1:])
os._exit(0)
"""


@pytest.mark.parametrize("task", ["_read_task", "_write_task"])
def test_a_node_that_hears_nothing_any_more_is_started_again_and_answers(task, monkeypatch):
    async def check():
        client = DhtClient(NodeSettings())
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "PROGRAM", ("-c", DEAFENED.format(task=task)))
            await client.start()
        try:
            assert await client.call("addresses") == ["deaf"]
            async with asyncio.timeout(30):
                await client.restarted.wait()
            await enter_at(*await client.call("addresses"))
        finally:
            await client.close()

    asyncio.run(check())


async def enter_at(address):
    """Nobody enters a DHT whose node does not answer. Raises: AddressError."""
    onlooker = DhtClient(NodeSettings(initial_peers=(address,), client_mode=True))
    await onlooker.start()
    await onlooker.close()


@pytest.fixture(scope="module")
def stock():
    with stock_node() as address:
        yield address


async def failure(settings):
    """The error of a start that must fail, quickly, and leave no process and no folder."""
    client = DhtClient(settings)
    async with asyncio.timeout(60):
        with pytest.raises((AddressError, PortInUseError)) as caught:
            await client.start()
    assert client._folder is None or not client._folder.exists()
    if client.process_id is not None:
        assert not psutil.pid_exists(client.process_id)
    assert caught.value.hint
    return caught.value


def test_starts_that_fail_say_what_is_in_the_way(stock):
    host_and_port, _, peer_id = stock.rpartition("/p2p/")

    async def check():
        other = Identity.create().peer_id
        error = await failure(NodeSettings(initial_peers=(f"{host_and_port}/p2p/{other}",)))
        assert "another peer" in error.message
        assert peer_id in error.message
        error = await failure(NodeSettings(initial_peers=(f"/ip4/127.0.0.1/tcp/9/p2p/{other}",)))
        assert "connection refused" in error.message
        error = await failure(NodeSettings(listen=f"127.0.0.1:{host_and_port.split('/')[4]}"))
        assert isinstance(error, PortInUseError)
        assert "[network] listen" in error.hint
        error = await failure(NodeSettings(listen="192.0.2.1:0"))
        assert isinstance(error, AddressError)

    asyncio.run(check())


def test_a_wrong_clock_is_named_with_its_offset():
    with stock_node(clock_ahead_s=-100.0) as address:

        async def check():
            error = await failure(NodeSettings(initial_peers=(address,)))
            assert "100 s ahead" in error.message

        asyncio.run(check())


def test_one_living_entrance_of_several_is_enough_and_atoms_own_will_do(tmp_path, stock):
    dead = f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}"

    async def check():
        stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        identity_path = tmp_path / "identity"
        settings = NodeSettings(str(identity_path), initial_peers=(dead, stock))
        bootstrap = asyncio.create_task(run_bootstrap(settings, stop, ready.set_result))
        try:
            async with asyncio.timeout(60):
                [address] = await ready
                assert address.endswith(Identity.load_or_create(identity_path).peer_id)
                await enter_at(address)
        finally:
            stop.set()
            await bootstrap

    asyncio.run(check())


def test_a_node_that_stands_still_is_told_as_that_and_in_the_end_replaced(monkeypatch, tmp_path):
    assert 3 < client_module.MAX_UNANSWERED < 10
    monkeypatch.setattr(client_module, "MAX_UNANSWERED", 1)
    monkeypatch.setattr(client_module, "CONTACTS_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(client_module, "MAX_LOG_BYTES", 1000)
    log = tmp_path / "dht.log"

    async def check():
        client = DhtClient(NodeSettings(log_path=str(log)))
        await client.start()
        try:
            log.write_bytes(b"x" * 2000)
            async with asyncio.timeout(60):
                while log.stat().st_size >= 2000:
                    await asyncio.sleep(0.05)
            still = psutil.Process(client.process_id)
            still.suspend()
            with pytest.raises(DirectoryUnavailable, match=r"^contacts: no answer from the DHT$"):
                await client.call("contacts", 0.0)
            async with asyncio.timeout(60):
                await client.restarted.wait()
            assert not still.is_running()
            await enter_at(*await client.call("addresses"))
        finally:
            await client.close()

    asyncio.run(check())


def our_processes():
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_who_is_told_to_stop_waits_for_no_silent_entrance(tmp_path):
    before = our_processes()

    async def check():
        with socket.create_server(("127.0.0.1", 0)) as silent:
            entrance = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}/p2p/{PEER}"
            settings = NodeSettings(str(tmp_path / "identity"), initial_peers=(entrance,))
            stop, addresses = asyncio.Event(), []
            bootstrap = asyncio.create_task(run_bootstrap(settings, stop, addresses.append))
            while not (begun := our_processes() - before):
                await asyncio.sleep(0.01)
            stop.set()
            await bootstrap
            assert wait_until_gone(list(begun)) == []
            assert addresses == []

    asyncio.run(check())


@pytest.fixture
def short_folder():
    """A path short enough for Unix sockets below it."""
    with tempfile.TemporaryDirectory(prefix="a", dir="/tmp") as name:
        yield Path(name)


def test_what_a_killed_pair_left_is_cleared_by_the_next_start(short_folder, monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = short_folder / f"atom-dht-{ended.pid}-x"
    kept = short_folder / f"atom-dht-{os.getpid()}-x"
    for folder in (left, kept):
        folder.mkdir()
        (folder / "p2pd.sock").touch()
    monkeypatch.setattr("tempfile.tempdir", str(short_folder))

    async def check():
        client = DhtClient(NodeSettings(initial_peers=(f"/ip4/127.0.0.1/tcp/9/p2p/{PEER}",)))
        with pytest.raises(AddressError):
            await client.start()

    asyncio.run(check())
    assert list(short_folder.iterdir()) == [kept]
