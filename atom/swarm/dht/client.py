"""Client of the DHT process: the daemon starts it, calls it, and starts it again if it ends.

The DHT node has a separate process because hivemind must not be imported where CUDA runs (two
seconds, threads, forks), and because a hostile record or a bug may crash a node: that must not stop
the swarm. While the process is down, calls fail at once with DirectoryUnavailable, so no peer is
taken for dead because we cannot read. Nothing outlives the daemon: `process` and `p2pd` have the
other half of that promise.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import psutil

from atom.base import errors
from atom.base.clock import BootClock, Clock
from atom.base.errors import StorageError, UserError
from atom.base.events import EventFan, EventSink
from atom.base.files import child_environment
from atom.swarm.addresses import ListenAddress, listening, parse_listen
from atom.swarm.dht.p2pd import NodeSettings, end_process
from atom.swarm.dht.process import MAX_LINE_BYTES, message_line, read_message
from atom.swarm.records.store import DirectoryUnavailable

START_SECONDS = 160.0
"""Time to import hivemind from a slow disk, start p2pd, dial and join. The process itself gives up
slow steps earlier: an address that does not answer takes it only seconds."""
STOP_SECONDS = 6.0
ONLOOKER_STOP_SECONDS = 0.3
"""Time for an observer's node to end: no peer depends on it, and a person has pressed Ctrl-C. The
kernel then kills p2pd too. A process that is still importing libraries cannot see that we have hung
up."""
CALL_SECONDS = 4.0
FETCH_MARGIN_SECONDS = 2.5
ANSWER_MARGIN_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
HEALTHY_SECONDS = 300.0
"""Running time after which the pauses between restarts begin at their shortest again. A stranger's
record may crash the node again and again, and each restart costs two seconds of a processor."""
CONTACTS_EVERY_SECONDS = 5.0
MAX_UNANSWERED = 6
"""Unanswered calls in a row, about ten seconds each, after which a silent process is ended."""
MAX_LOG_BYTES = 8 << 20
LISTEN = "[network] listen in a peer file (start and bootstrap also take --listen)"
_FOLDER_PREFIX = "atom-dht-"
_MAX_ROOT_CHARACTERS = 50
PROGRAM = ("-P", "-m", "atom.swarm.dht.process")


class DhtClient:
    """DHT process of this daemon.

    Create, `start`, use and `close` it in one event loop. The loop's thread must live until then:
    the kernel kills the process when that thread ends.
    """

    def __init__(
        self,
        settings: NodeSettings,
        events: EventSink | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._clock, self._sleep = clock or BootClock(), sleep
        self._began_at = self._clock.now()
        self._pause_s = 0.0
        self._events = events or EventFan()
        self._process: Process | None = None
        self._folder: Path | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        """Task that reads answers and ends with the process; None unless a process is ready."""
        self._watching: asyncio.Task[None] | None = None
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.contacts: tuple[str, ...] = tuple(settings.contacts)
        """Multiaddrs of DHT nodes met lately, which are dialled after a restart."""
        self.restarted = asyncio.Event()
        """Set after each restart of the process; clear it to wait for the next restart."""

    async def start(self) -> None:
        """Start the process and return when its node has joined the DHT.

        Leaves nothing behind if it fails.

        Raises:
            AddressError, PortInUseError, StorageError, UserError: A person has to act.
            DirectoryUnavailable: The system refuses a process or a file, or the process sends
                malformed answers.
        """
        await self._open(self._settings)
        self._watching = asyncio.create_task(self._watch())

    async def store(
        self,
        key: str,
        subkey: str,
        record: bytes,
        expires_at: float,
        known: Collection[str] = (),
        only_known: bool = False,
    ) -> None:
        """Store a record: see `DhtNode.store`."""
        await self.call(
            "store",
            key=key,
            subkey=subkey,
            record=record,
            expires_at=expires_at,
            known=list(known),
            only_known=only_known,
        )

    async def fetch(
        self,
        key: str,
        deadline_s: float,
        widely: bool = False,
        known: Collection[str] = (),
        only_known: bool = False,
    ) -> tuple[list[tuple[str, bytes]], bool]:
        """Read the records under a key: see `DhtNode.fetch`."""
        found, is_complete = await self.call(
            "fetch",
            timeout_s=deadline_s + FETCH_MARGIN_SECONDS,
            key=key,
            deadline_s=deadline_s,
            widely=widely,
            known=list(known),
            only_known=only_known,
        )
        return found, is_complete

    async def addresses(self) -> list[str]:
        """Return the multiaddrs under which others may enter through this node."""
        found: list[str] = await self.call("addresses")
        return found

    async def call(self, name: str, timeout_s: float = CALL_SECONDS, **arguments: Any) -> Any:
        """Call a method of the process's node, and return its result.

        Args:
            name: Method of `DhtNode`.
            timeout_s: Time for the call.
            arguments: Keyword arguments: JSON types or bytes.

        Raises:
            DirectoryUnavailable: No answer arrived in time, the call failed, or the process is
                being started again.
        """
        if self._writer is None or self._reading is None or self._reading.done():
            raise DirectoryUnavailable("the DHT process is starting")
        number = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        request = {"id": number, "call": name, "timeout_s": timeout_s, "arguments": arguments}
        try:
            async with asyncio.timeout(timeout_s + ANSWER_MARGIN_SECONDS):
                self._writer.write(message_line(request))
                await self._writer.drain()
                result = await answer
        except (TimeoutError, ConnectionError) as error:
            problem = str(error) or "no answer from the DHT"
            raise DirectoryUnavailable(f"{name}: {problem}") from None
        finally:
            self._waiting.pop(number, None)
        if "failed" in result:
            raise DirectoryUnavailable(f"{name}: {result['failed']}")
        return result["answer"]

    async def close(self) -> None:
        """End the process and wait for it. Never fails; idempotent."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await self._end()

    async def _open(self, settings: NodeSettings) -> None:
        try:
            if not self._settings.client_mode:  # for an observer p2pd chooses any port
                listen = free_port(parse_listen(self._settings.listen or "127.0.0.1:0"))
                self._settings = replace(self._settings, listen=str(listen))
            reader = await self._spawn()
            await self._until_ready(reader, replace(settings, listen=self._settings.listen))
        except BaseException as problem:
            await self._end()
            if isinstance(problem, UserError) or not isinstance(problem, (OSError, ValueError)):
                raise
            raise DirectoryUnavailable(f"the DHT process did not start: {problem}") from problem
        self._reading = asyncio.create_task(self._read_answers(reader))

    async def _spawn(self) -> asyncio.StreamReader:
        self._folder = _make_folder()
        with contextlib.ExitStack() as stack:
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            with theirs, open_node_log(self._settings.log_path) as log:
                self._process = await self._python(theirs, log)
            reader, self._writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
            stack.pop_all()  # from here on, the writer closes the socket
        return reader

    async def _python(self, theirs: socket.socket, log: IO[bytes]) -> Process:
        """Start the Python process. Raises: OSError."""
        return await asyncio.create_subprocess_exec(
            *(sys.executable, *PROGRAM),
            *(str(theirs.fileno()), str(os.getpid()), str(self._folder)),
            pass_fds=(theirs.fileno(),),
            stdin=DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=child_environment(),
        )

    async def _until_ready(self, reader: asyncio.StreamReader, settings: NodeSettings) -> None:
        assert self._writer is not None
        self._writer.write(message_line(asdict(settings)))
        try:
            async with asyncio.timeout(START_SECONDS):
                message = await read_message(reader)
        except TimeoutError:
            raise UserError(
                f"the DHT node did not start within {START_SECONDS:.0f} s",
                "is the machine overloaded, or a named DHT node very slow? try again",
            ) from None
        if message is None:
            path = settings.log_path
            hint = f"see {path}" if path else "is hivemind installed completely?"
            raise UserError("the DHT node stopped while starting", hint)
        if "failed" in message:
            kind, *words = message["failed"]
            raise getattr(errors, kind)(*words)

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        try:
            while (message := await read_message(reader)) is not None:
                waiting = self._waiting.get(message["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_result({"failed": "the DHT process has stopped"})

    async def _end(self) -> None:
        """End the present process and remove all that belongs to it. Never fails."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._writer is not None:
            self._writer.transport.abort()  # closing would wait for a process that does not read
        if self._process is not None:
            looked_only = self._settings.client_mode
            patience_s = ONLOOKER_STOP_SECONDS if looked_only else STOP_SECONDS
            await end_process(self._process, patience_s)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _watch(self) -> None:
        unanswered = 0
        while True:
            assert self._reading is not None
            await asyncio.wait({self._reading}, timeout=CONTACTS_EVERY_SECONDS)
            if self._reading.done() or unanswered >= MAX_UNANSWERED:
                await self._start_again()
                unanswered = 0
                continue
            keep_small(self._settings.log_path)
            unanswered += 1
            with contextlib.suppress(DirectoryUnavailable):
                self.contacts = tuple(await self.call("contacts"))
                unanswered = 0

    async def _start_again(self) -> None:
        self._events.emit("dht-process-ended")
        if self._clock.now() - self._began_at >= HEALTHY_SECONDS:
            self._pause_s = 0.0
        while True:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_SECONDS) or FIRST_PAUSE_SECONDS
            await self._sleep(self._pause_s)
            contacts = tuple(dict.fromkeys((*self.contacts, *self._settings.initial_peers)))
            try:
                await self._end()
                await self._open(replace(self._settings, initial_peers=(), contacts=contacts))
            except Exception as error:  # noqa: BLE001 - supervisor: else the peer stays without a DHT
                self._events.emit("dht-restart-failed", detail=str(error))
                continue
            self._began_at = self._clock.now()
            self._events.emit("dht-process-restarted")
            self.restarted.set()
            return


def free_port(listen: ListenAddress) -> ListenAddress:
    """Check that an address is free; if its port is 0, choose one that restarts of the node keep.

    libp2p silently shares a port with another libp2p process, so the check is made here.

    Raises:
        PortInUseError: Another program listens there.
        AddressError: This process cannot have that interface or port.
    """
    with listening(listen.host, listen.port, LISTEN) as probe:
        return ListenAddress(listen.host, probe.getsockname()[1])


def _make_folder() -> Path:
    """Create a private folder for sockets, and remove the folders of killed processes.

    Paths of sockets must be short. The name contains our process id, so that a later process can
    find out that we have ended. Raises: StorageError.
    """
    root = tempfile.gettempdir()
    if len(root) > _MAX_ROOT_CHARACTERS:
        root = "/tmp"
    _clear_abandoned(Path(root))
    try:
        return Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-", dir=root))
    except OSError as error:
        raise StorageError(
            f"cannot create a folder in {root}: {error.strerror}", "free some space there"
        ) from None


def _clear_abandoned(root: Path) -> None:
    """Remove folders of processes that were killed; their DHT processes were killed with them."""
    for folder in root.glob(f"{_FOLDER_PREFIX}*-*"):
        pid = folder.name.removeprefix(_FOLDER_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            ours = pid.isdigit() and folder.stat().st_uid == os.getuid()
            if ours and not psutil.pid_exists(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)


def open_node_log(path: str | None) -> IO[bytes]:
    """Open the log of a node that is about to start; None discards the node's output.

    Raises:
        StorageError: The log cannot be written.
    """
    keep_small(path)
    try:
        return open(path or os.devnull, "ab")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", "check the folder") from None


def keep_small(path: str | None) -> None:
    """Empty a log that has become too large. Never fails.

    The DHT node holds the file open and continues at its new end.
    """
    with contextlib.suppress(OSError):
        if path is not None and os.path.getsize(path) > MAX_LOG_BYTES:
            os.truncate(path, 0)
