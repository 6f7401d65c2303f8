"""The DHT node's own process: `python -m atom.swarm.dht.process SOCKET_FD PARENT_PID FOLDER`.

Started by the daemon (see client), never by hand. It serves its parent over an inherited
socket and exists for it alone: when the parent is gone (the socket ends, or the kernel tells)
it takes the libp2p daemon and its folder along. An interrupt at the terminal is the parent's
business, and so is being asked to end: it still says goodbye through this process.
"""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atom.base.clock import BootClock
from atom.base.errors import StorageError, UserError
from atom.swarm.addresses import parse_listen
from atom.swarm.dht.frames import (
    NodeSettings,
    encode_frame,
    error_to_json,
    from_text,
    read_frame,
    settings_from_json,
    to_text,
)
from atom.swarm.dht.p2pd import P2pDaemon, die_with_parent
from atom.swarm.dht.wall_clock import WallClock

if TYPE_CHECKING:
    from atom.swarm.dht.node import DhtNode

MAX_REQUESTS = 64
"""Requests under way at once; further ones are refused rather than queued."""
KEEP_SECONDS = 60.0
KEEP_LIFETIME_SECONDS = 600.0
CLOCK_SECONDS = 1.0
"""How often the clock on the wall is looked at."""
CLOSE_SECONDS = 2.0

Pending = asyncio.Task[dict[str, Any] | None]


class DhtService:
    """Answers one parent until it hangs up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: dict[tuple[str, str], bytes] = {}
        self._node: DhtNode

    async def run(self, folder: Path) -> None:
        """Starts daemon and node, serves, and clears up. Returns when the parent is gone."""
        opening = await read_frame(self._reader)
        if opening is None:
            return
        settings, p2pd = settings_from_json(opening["open"]), P2pDaemon(folder)
        first = asyncio.create_task(read_frame(self._reader))  # sees the parent hang up meanwhile
        joining = asyncio.create_task(self._join(settings, p2pd))
        try:
            await asyncio.wait({first, joining}, return_when=asyncio.FIRST_COMPLETED)
            if joining.done():
                joining.result()
                await self._send({"phase": "ready"})
                await self._serve_until_end(p2pd, first, settings.redial_seconds)
                if not settings.client_mode:
                    await self._say_goodbye()
        except UserError as error:
            await self._send({"phase": "failed", "error": error_to_json(error)})
        finally:
            joining.cancel()
            first.cancel()
            await p2pd.stop(gently=not settings.client_mode)  # who only looked is missed by nobody

    async def _join(self, settings: NodeSettings, p2pd: P2pDaemon) -> None:
        await p2pd.start(settings, parse_listen(settings.listen or "127.0.0.1:0"))
        await self._send({"phase": "loading"})
        node = _loaded()  # two seconds, while p2pd warms up
        await self._send({"phase": "joining"})
        self._node = node(settings, p2pd.socket_path)
        await self._node.open()

    async def _serve_until_end(self, p2pd: P2pDaemon, first: Pending, redial_s: float) -> None:
        """Ends when the parent hangs up or p2pd dies (the parent then sees *us* hang up)."""
        ends = [asyncio.create_task(self._serve(first)), asyncio.create_task(p2pd.wait())]
        chores = [
            asyncio.create_task(self._redial(redial_s)),
            asyncio.create_task(self._keep_alive()),
            asyncio.create_task(self._watch_clock()),
        ]
        await asyncio.wait([*ends, *chores], return_when=asyncio.FIRST_COMPLETED)
        for task in [*ends, *chores, *self._tasks]:
            task.cancel()

    async def _say_goodbye(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._node.close()

    async def _serve(self, first: Pending) -> None:
        request = await first
        while request is not None:
            if len(self._tasks) >= MAX_REQUESTS:
                await self._send({"id": request["id"], "failed": "too many requests"})
            else:
                task = asyncio.create_task(self._answer(request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            request = await read_frame(self._reader)

    async def _answer(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any]
        try:
            async with asyncio.timeout(float(request["timeout_s"])):
                answer = await self._carry_out(request)
        except TimeoutError:
            answer = {"failed": "timeout"}
        except Exception as error:  # noqa: BLE001 -- the supervisor of a request: hivemind and
            # libp2p raise anything; one failed call is an answer, not the end of the node
            answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
        await self._send({"id": request["id"], **answer})

    async def _carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["call"]:
            case "store":
                record, expires_at = from_text(request["record"]), float(request["expires_at"])
                stored = await self._node.store(
                    request["key"], request["subkey"], record, expires_at
                )
                return {"stored": stored}
            case "keep":
                self._kept[request["key"], request["subkey"]] = from_text(request["record"])
                return {"stored": await self._store_kept(request["key"], request["subkey"])}
            case "fetch":
                found, complete = await self._node.fetch(
                    request["keys"], request["deadline_s"], request["widely"]
                )
                records = [[subkey, to_text(record)] for subkey, record in found]
                return {"records": records, "complete": complete}
            case "addresses":
                return {"addresses": await self._node.addresses()}
            case "contacts":
                return {"addresses": await self._node.contacts()}
            case "neighbours":
                return {"peer_ids": await self._node.neighbours()}
        return {"failed": f"unknown call {request['call']!r}"}

    async def _store_kept(self, key: str, subkey: str) -> bool:
        expires_at = time.time() + KEEP_LIFETIME_SECONDS
        return await self._node.store(key, subkey, self._kept[key, subkey], expires_at)

    async def _keep_alive(self) -> None:
        """Stores again what must outlive its author. Every peer does; the times are spread."""
        while True:
            await asyncio.sleep(KEEP_SECONDS * random.uniform(0.8, 1.2))
            await self._store_all_kept()

    async def _store_all_kept(self) -> None:
        for key, subkey in list(self._kept):
            await self._quietly(self._store_kept(key, subkey))

    async def _watch_clock(self) -> None:
        clock = WallClock(BootClock())
        while True:
            await asyncio.sleep(CLOCK_SECONDS)
            if clock.was_set_back():
                self._node.forget_the_future()
                await self._store_all_kept()

    async def _redial(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s * random.uniform(0.8, 1.2))
            await self._quietly(self._node.redial())

    async def _quietly(self, work: Any) -> None:
        try:
            async with asyncio.timeout(KEEP_SECONDS):
                await work
        except Exception as error:  # noqa: BLE001 -- the supervisor of a chore: it runs again soon
            with contextlib.suppress(OSError):  # the disk of our log may be full
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201

    async def _send(self, message: dict[str, Any]) -> None:
        """To a parent that is gone there is nothing to say: `_serve` sees the end too."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(encode_frame(message))
            await self._writer.drain()


def _loaded() -> "type[DhtNode]":
    """hivemind makes locks as it is imported. Raises: StorageError if they cannot be had."""
    try:
        from atom.swarm.dht.node import DhtNode
    except OSError as problem:
        raise StorageError(
            f"hivemind cannot be loaded: {problem.strerror or problem}",
            "its locks lie in /dev/shm: is there room, and may you write there?",
        ) from problem
    return DhtNode


async def _run(descriptor: int, folder: Path) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    try:
        await DhtService(reader, writer).run(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> None:
    descriptor, parent_pid, folder = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # sent to whole groups at once
        signal.signal(number, signal.SIG_IGN)
    if parent_pid:
        die_with_parent()
        if os.getppid() != parent_pid:  # it died before we could ask for the signal
            return
    asyncio.run(_run(descriptor, folder))


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # hivemind's threads need not be waited for
