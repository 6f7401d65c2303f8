"""Process of the DHT node: `python -m atom.swarm.dht.process SOCKET_FD PARENT_PID FOLDER`.

The daemon starts it (see `client`), never a person. It serves its parent over an inherited socket.
When the parent is gone (the socket ends, or the kernel kills this process), the libp2p daemon ends
too. Signals to interrupt or to end are ignored: the parent handles them, and still publishes its
departure through this process.

Each message is a line of JSON. The parent's first message has the settings; our first says whether
the node is up. Then the parent calls methods of the node, each with an `id`, which our answer
repeats.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atom.base.errors import UserError
from atom.swarm.addresses import parse_listen
from atom.swarm.dht.p2pd import (
    MAX_NODE_BYTES,
    NodeSettings,
    bound_memory,
    die_with_parent,
    running_p2pd,
    until_p2pd_is_large,
)

if TYPE_CHECKING:
    from atom.swarm.dht.node import DhtNode

MAX_LINE_BYTES = 16 << 20
"""Bound of one message: twice the bytes that a reading of the DHT may return, as they are written
in hexadecimal."""
CLOSE_SECONDS = 2.0
REDIAL_SECONDS = 10.0
"""Interval at which nodes that have dropped out of our tables are dialled again."""
CLOCK_EVERY_SECONDS = 1.0
CLOCK_STEP_SECONDS = 1.0
"""Correction of the clock from which on the node is restarted. Smaller ones do not matter to a
lease, which lasts eight seconds."""


class DhtService:
    """Service that answers one parent until it hangs up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._tasks: set[asyncio.Task[None]] = set()
        self._node: DhtNode | None = None

    async def run(self, folder: Path) -> None:
        """Start the libp2p daemon and the node, serve, and clean up.

        Returns when the parent is gone, or when this process has to be started again because p2pd
        has ended or the node no longer hears it.
        """
        opening = await read_message(self._reader)
        if opening is None:
            return
        tasks = {
            asyncio.create_task(self._serve()),  # also sees the parent hang up while we join
            asyncio.create_task(self._live(NodeSettings(**opening), folder)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except UserError as error:
            await self._send({"failed": (type(error).__name__, error.message, error.hint)})
        finally:
            for each in (*tasks, *self._tasks):
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _live(self, settings: NodeSettings, folder: Path) -> None:
        """Join the DHT; then run the node's background tasks until it has to be restarted."""
        listen = parse_listen(settings.listen or "127.0.0.1:0")
        async with running_p2pd(folder, settings, listen) as p2pd_socket:
            from atom.swarm.dht.node import DhtNode  # takes two seconds, and makes locks

            self._node = node = DhtNode(settings, p2pd_socket)
            await node.open()
            await self._send({"ready": True})
            chores = {
                asyncio.create_task(node.until_deaf()),
                asyncio.create_task(until_clock_is_set_back()),
                asyncio.create_task(until_p2pd_is_large()),
                asyncio.create_task(self._redial(node)),
            }
            try:
                await asyncio.wait(chores, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for chore in chores:
                    chore.cancel()
                if not settings.client_mode:  # no peer depends on an observer
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(CLOSE_SECONDS):
                            await node.close()

    async def _serve(self) -> None:
        while (request := await read_message(self._reader)) is not None:
            task = asyncio.create_task(self._answer(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(request["timeout_s"]):
                result = await getattr(self._node, request["call"])(**request["arguments"])
            answer = {"answer": result}
        except Exception as error:  # noqa: BLE001 -- one bad answer is no reason to end the node
            answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
        await self._send({"id": request["id"]} | answer)

    async def _redial(self, node: "DhtNode") -> None:
        while True:
            await asyncio.sleep(REDIAL_SECONDS * random.uniform(0.8, 1.2))
            try:
                await node.redial()
            except Exception as error:  # noqa: BLE001 -- supervisor: the task runs again soon
                with contextlib.suppress(OSError):  # the disk of our log may be full
                    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)  # noqa: T201

    async def _send(self, message: dict[str, Any]) -> None:
        """Send a message; do nothing if the parent is gone, since `_serve` notices that too."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(message_line(message))
            await self._writer.drain()


def message_line(message: dict[str, Any]) -> bytes:
    """Encode a message as a line for `read_message` at the other end."""
    return json.dumps(message, default=lambda raw: {"hex": raw.hex()}).encode() + b"\n"


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Read the next message; return None if the other end is gone.

    Raises:
        ValueError: The line is not JSON, or exceeds the reader's limit.
    """
    line = b""
    with contextlib.suppress(ConnectionError):
        line = await reader.readline()
    return json.loads(line, object_hook=_bytes_again) if line.endswith(b"\n") else None


def _bytes_again(fields: dict[str, Any]) -> Any:
    return bytes.fromhex(fields["hex"]) if fields.keys() == {"hex"} else fields


async def until_clock_is_set_back(
    wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
) -> None:
    """Return when the wall clock was set back: the node then has to restart with no records.

    A node keeps the record that expires last. Records stored while the clock was ahead would keep
    out all new ones until the clock reaches their time again.
    """
    ahead_s = wall() - steady()
    while (now_s := wall() - steady()) > ahead_s - CLOCK_STEP_SECONDS:
        ahead_s = now_s
        await asyncio.sleep(CLOCK_EVERY_SECONDS)


async def _run(descriptor: int, folder: Path) -> None:
    ours = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
    await DhtService(reader, writer).run(folder)


def main(arguments: list[str]) -> None:
    """Run a DHT node for a parent process until the parent ends.

    Args:
        arguments: Descriptor of the socket to the parent, the parent's process id, and the folder
            of the node's files.
    """
    descriptor, parent_pid, folder = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # sent to whole groups at once
        signal.signal(number, signal.SIG_IGN)
    die_with_parent()
    bound_memory(MAX_NODE_BYTES)
    if os.getppid() == parent_pid:  # else the parent died before `die_with_parent`
        asyncio.run(_run(descriptor, folder))


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # hivemind's threads need not be waited for
