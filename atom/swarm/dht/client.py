"""The daemon's end of the DHT process: start it, call it, be sure that it ends.

The node lives in a process of its own because hivemind must not be imported (two seconds, threads,
forks) where CUDA runs, and because a node that breaks is then simply started again. Nothing
outlives the daemon: see process and p2pd for the other half of that promise.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import psutil

import atom
from atom.base.errors import AddressError, AtomError, PortInUseError, StorageError, UserError
from atom.swarm.addresses import ListenAddress, parse_listen
from atom.swarm.dht.frames import (
    NodeSettings,
    encode_frame,
    error_from_json,
    read_frame,
    settings_to_json,
)
from atom.swarm.dht.node_log import open_node_log

START_SECONDS = 20.0
"""For the libp2p daemon, which starts in a tenth of one."""
LOAD_SECONDS = 120.0
"""For importing hivemind from a slow disk."""
JOIN_SECONDS = 20.0
"""For dialling and joining; an address that does not answer is given up sooner."""
STOP_SECONDS = 6.0
ONLOOKER_STOP_SECONDS = 0.3
"""Nobody misses a node that only looked, and somebody has pressed Ctrl-C. The kernel takes p2pd
along; while the process imports its libraries, it does not even see that we have hung up."""
ANSWER_MARGIN_SECONDS = 1.0
_FOLDER_PREFIX = "atom-dht-"
_MAX_SOCKET_PATH = 90


class DirectoryUnavailable(AtomError):
    """The DHT cannot be asked right now. Nothing is known about anybody; ask again later."""


class DhtClient:
    """One DHT process. Made, started, used and closed once, all in one event loop, whose thread
    must live until then: the kernel ends the process with it."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._follow_pid = os.getpid()
        """The kernel ends the child with the *thread* that runs our event loop; 0: it does not."""
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.ended = asyncio.Event()
        """Set when the process is gone or useless; every later call fails at once."""

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Returns when the node is part of the DHT. Leaves nothing behind if it fails.

        Raises: AddressError, PortInUseError, StorageError, UserError; DirectoryUnavailable where
        the system gives no process or file for it, or it speaks nonsense.
        """
        try:
            check_port_free(parse_listen(self._settings.listen or "127.0.0.1:0"))
            reader = await self._spawn()
            await self._until_ready(reader)
        except UserError:
            await self.close()
            raise
        except (OSError, ValueError) as problem:
            await self.close()
            raise DirectoryUnavailable(f"the DHT process did not start: {problem}") from problem
        except BaseException:
            await self.close()
            raise
        self._reading = asyncio.create_task(self._read_answers(reader))

    async def call(self, name: str, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        """The answer to one request. Raises: DirectoryUnavailable, also when time is up."""
        if self.ended.is_set():
            raise DirectoryUnavailable("the DHT process has ended")
        if self._writer is None or self._reading is None:
            raise DirectoryUnavailable("the DHT process is starting")
        number = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        request = {"id": number, "call": name, "timeout_s": timeout_s, **arguments}
        try:
            async with asyncio.timeout(timeout_s + ANSWER_MARGIN_SECONDS):
                self._writer.write(encode_frame(request))
                await self._writer.drain()
                result = await answer
        except (TimeoutError, ConnectionError) as error:
            raise DirectoryUnavailable(
                f"{name}: {str(error) or 'no answer from the DHT'}"
            ) from None
        finally:
            self._waiting.pop(number, None)
        if "failed" in result:
            raise DirectoryUnavailable(f"{name}: {result['failed']}")
        return result

    async def close(self) -> None:
        """Ends the process and waits for it; never fails, may be called again."""
        self.ended.set()
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):  # what the line ended with, short memory perhaps
                await self._writer.wait_closed()
        if self._reading is not None:
            self._reading.cancel()
        if self._process is not None:
            looked_only = self._settings.client_mode
            patience_s = ONLOOKER_STOP_SECONDS if looked_only else STOP_SECONDS
            try:
                await asyncio.to_thread(_end, self._process, patience_s)
            except RuntimeError:  # no thread to be had: better to stand still than to leave it
                _end(self._process, patience_s)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._fail_waiting()

    async def _spawn(self) -> asyncio.StreamReader:
        self._folder = _make_folder()
        with contextlib.ExitStack() as stack:
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            with theirs, open_node_log(self._settings.log_path) as log:
                self._process = self._process_with(theirs, log)
            reader, self._writer = await asyncio.open_connection(sock=ours)
            stack.pop_all()  # from here on the writer's to close
        return reader

    def _process_with(self, theirs: socket.socket, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Raises: OSError."""
        return subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "atom.swarm.dht.process"),
                *(str(theirs.fileno()), str(self._follow_pid), str(self._folder)),
            ],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=_environment(),
        )

    async def _until_ready(self, reader: asyncio.StreamReader) -> None:
        assert self._writer is not None
        self._writer.write(encode_frame({"open": settings_to_json(self._settings)}))
        limits = {"loading": LOAD_SECONDS, "joining": JOIN_SECONDS}
        limit_s = START_SECONDS
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    message = await read_frame(reader)
            except TimeoutError:
                raise UserError(
                    f"the DHT node did not start within {limit_s:.0f} s",
                    "is the machine overloaded, or a named DHT node very slow? try again",
                ) from None
            if message is None:
                raise UserError("the DHT node ended while starting", self._log_hint())
            if message["phase"] == "failed":
                raise error_from_json(message["error"])
            if message["phase"] == "ready":
                return
            limit_s = limits[message["phase"]]

    async def _read_answers(self, reader: asyncio.StreamReader) -> None:
        try:
            while (message := await read_frame(reader)) is not None:
                waiting = self._waiting.get(message["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
        finally:
            self.ended.set()
            self._fail_waiting()

    def _fail_waiting(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result({"failed": "the DHT process has ended"})

    def _log_hint(self) -> str:
        path = self._settings.log_path
        return f"see {path}" if path else "is hivemind installed completely?"


def check_port_free(listen: ListenAddress) -> None:
    """libp2p shares a port silently with another of its kind, so we look before it does.

    Raises: PortInUseError; AddressError for an interface or port this process cannot have.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen.host, listen.port))
            probe.listen(1)
        except OSError as error:
            where = f"{listen.host}:{listen.port}"
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"another program listens on {where}",
                    "choose another, or 0 for any free one: [network] listen in a peer file"
                    " (start and bootstrap also take --listen)",
                ) from None
            raise AddressError(
                f"cannot listen on {where}: {error.strerror}",
                "use an address of this machine (or 0.0.0.0) and a port above 1023: [network]"
                " listen in a peer file (start and bootstrap also take --listen)",
            ) from None


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Waits for a process that has lost its socket; impatient with one that does not go."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Atom importable as it is here, no GPU, one arithmetic thread."""
    paths = [str(Path(atom.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def _make_folder() -> Path:
    """A private folder for sockets, named after this process so that a later one can clear it."""
    root = tempfile.gettempdir()
    if len(root) > _MAX_SOCKET_PATH - 40:
        root = "/tmp"
    _clear_abandoned(Path(root))
    try:
        return Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-", dir=root))
    except OSError as error:
        raise StorageError(
            f"cannot create a folder in {root}: {error.strerror}", "free some space there"
        ) from None


def _clear_abandoned(root: Path) -> None:
    """Folders of processes that were killed together with their DHT process."""
    for folder in root.glob(f"{_FOLDER_PREFIX}*-*"):
        pid = folder.name.removeprefix(_FOLDER_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            ours = pid.isdigit() and folder.stat().st_uid == os.getuid()
            if ours and not psutil.pid_exists(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)
