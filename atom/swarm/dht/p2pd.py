"""The libp2p daemon (a Go program that hivemind ships) as our own child, never an orphan; and how
a DHT node meets the world with it.

It is started here rather than by hivemind, because hivemind's way survives its parent's SIGKILL
and leaves sockets in /tmp. Here the kernel kills it when its parent dies, however that happens,
and its sockets lie in a folder that the parent removes.
"""

import asyncio
import contextlib
import ctypes
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atom.base.errors import UserError
from atom.swarm.addresses import ListenAddress

LOOK_EVERY_SECONDS = 0.02
STOP_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class NodeSettings:
    """How a DHT node meets the world."""

    identity_path: str | None = None
    """libp2p key file; None: a throw-away identity (for onlookers)."""
    listen: str | None = None
    """HOST:PORT; None: any free port on the loopback interface."""
    announce: Sequence[str] = ()
    """libp2p multiaddrs others should dial instead of the ones we see ourselves."""
    initial_peers: Sequence[str] = ()
    """libp2p multiaddrs, each ending in /p2p/<peer id>; none: a new DHT begins here."""
    contacts: Sequence[str] = ()
    """DHT nodes met before: dialled too, but it is no error if none of them answers."""
    client_mode: bool = False
    """An onlooker: asks others, stores nothing for them, accepts no calls."""
    log_path: str | None = None
    """Where the node's own noise goes; None: nowhere."""


def die_with_parent() -> None:
    """Asks the kernel to SIGKILL this process when the *thread* that started it ends."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


async def end_process(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """Waits for one that was told to go; kills it when patience is over, or we are cancelled."""
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await process.wait()


class P2pDaemon:
    """One running p2pd. `folder` holds its control socket, at `socket_path`; its words go where
    ours do."""

    def __init__(self, folder: Path) -> None:
        self.socket_path = folder / "p2pd.sock"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, settings: NodeSettings, listen: ListenAddress) -> None:
        """Returns once it can be asked. Raises: UserError if it ends instead."""
        self._process = await asyncio.create_subprocess_exec(
            _binary(),
            *_arguments(settings, listen, self.socket_path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr,
            env=os.environ | {"GOLOG_LOG_LEVEL": "error"},
            preexec_fn=die_with_parent,
        )
        while self._process.returncode is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_unix_connection(self.socket_path)
                writer.close()
                return
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        hint = f"see {settings.log_path}" if settings.log_path else "is hivemind installed whole?"
        raise UserError("the libp2p daemon ended while starting", hint)

    async def stop(self, gently: bool = True) -> None:
        """Ends it: gently, then not."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            (self._process.terminate if gently else self._process.kill)()
        await end_process(self._process, STOP_SECONDS)


def _binary() -> str:
    """The path of p2pd, found without importing hivemind (two seconds)."""
    package = importlib.util.find_spec("hivemind")
    if package is None or package.origin is None:
        # The command depends on how Atom was installed, which the doctor knows.
        raise UserError("hivemind is not installed", "`atom doctor` says how to install it here")
    return str(Path(package.origin).parent / "hivemind_cli" / "p2pd")


def _arguments(settings: NodeSettings, listen: ListenAddress, socket_path: Path) -> Sequence[str]:
    """Bootstrap peers are missing on purpose: p2pd gives up at once when it cannot reach them,
    without saying why, while connecting to them afterwards tells what is wrong."""
    reach_out = int(not listen.is_loopback and not settings.client_mode)
    flags: dict[str, str | int] = {
        "listen": f"/unix{socket_path}",
        "hostAddrs": listen.multiaddr(),
        "dhtClient" if settings.client_mode else "dhtServer": 1,
        "autonat": reach_out,
        "natPortMap": reach_out,
        "relay": 1,
        "connManager": 1,
        "tls": 1,
    }
    if settings.identity_path is not None:
        flags["id"] = settings.identity_path
    if settings.announce:
        flags["announceAddrs"] = ",".join(settings.announce)
    return [f"-{name}={value}" for name, value in flags.items()]
