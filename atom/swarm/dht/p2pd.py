"""The libp2p daemon p2pd (a Go program that hivemind ships): settings, start, limits, and errors.

It is started here rather than by hivemind, because hivemind's p2pd survives a SIGKILL of its parent
and leaves sockets in /tmp. Here the kernel kills it when its parent dies for any reason, and its
sockets are in a folder that the parent removes.
"""

import asyncio
import contextlib
import ctypes
import importlib.util
import os
import re
import resource
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from atom.base.errors import AddressError, IdentityError, UserError
from atom.base.units import format_seconds
from atom.swarm.addresses import ListenAddress
from atom.swarm.records.lease import CLOCKS_APART_SECONDS

LOOK_EVERY_SECONDS = 0.02
STOP_SECONDS = 2.0
MAX_NODE_BYTES = 1 << 30
"""Writable memory of the DHT process: 260 MiB at rest."""
MAX_P2PD_BYTES = 512 << 20
"""Resident memory of p2pd: 62 MiB at rest, with two processors as with 64."""
MAX_P2PD_DATA_BYTES = 6 << 30
"""Buffers of all streams that libp2p admits, which are some 2,000 for three protocols, and more."""
MAX_MESSAGE_BYTES = 2 << 20
"""Bytes of one message that p2pd carries. The answer for a full key has little more than 1 MiB."""
LOOK_AT_MEMORY_SECONDS = 1.0
NO_RELAY = '{"Relay": {"Enabled": false}}'
"""Settings of p2pd that its command line cannot change."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class NodeSettings:
    """Settings of a DHT node."""

    identity_path: str | None = None
    """libp2p key file; None for a temporary identity (for observers)."""
    listen: str | None = None
    """HOST:PORT to listen on; None for any free port on the loopback interface."""
    announce: Sequence[str] = ()
    """libp2p multiaddrs that other nodes should dial; empty: the addresses that libp2p finds."""
    initial_peers: Sequence[str] = ()
    """libp2p multiaddrs, each ending in /p2p/<peer id>; none: a new DHT begins here."""
    contacts: Sequence[str] = ()
    """Multiaddrs of DHT nodes met before. They are dialled too, but need not answer."""
    client_mode: bool = False
    """True for an observer: it asks other nodes, stores nothing for them and accepts no calls."""
    log_path: str | None = None
    """File for the log output of the node; None discards it."""


def die_with_parent() -> None:
    """Make the kernel SIGKILL this process when the *thread* that started it ends."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def bound_memory(data_bytes: int) -> None:
    """Bound the memory of this process, and offer it as the kernel's first victim.

    Strangers decide how much work the DHT has. If they exhaust memory, this process must end and
    not the trainer beside it. RLIMIT_DATA counts the pages that a process may write, close to the
    memory in use; RLIMIT_AS counts reserved addresses too, of which Go takes 660 MiB for nothing.

    Args:
        data_bytes: most bytes of writable private memory. A lower limit of the user stays.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = data_bytes if hard == resource.RLIM_INFINITY else min(data_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    with contextlib.suppress(OSError):  # no Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


async def until_p2pd_is_large() -> None:
    """Return when the children of this process hold too much resident memory, or are gone.

    No limit of the kernel serves here. p2pd allocates a buffer when a stranger announces a message:
    192 streams that send a few bytes each took 768 MiB of data, and 20 MiB of memory. A limit that
    such streams cannot reach is the last resort, at MAX_P2PD_DATA_BYTES.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        while sum(p.memory_info().rss for p in psutil.Process().children()) <= MAX_P2PD_BYTES:
            await asyncio.sleep(LOOK_AT_MEMORY_SECONDS)


async def end_process(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """Wait for a process that was told to end; kill it after `patience_s`, or if cancelled."""
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await process.wait()


def _before_exec() -> None:
    die_with_parent()
    bound_memory(MAX_P2PD_DATA_BYTES)


@contextlib.asynccontextmanager
async def running_p2pd(
    folder: Path, settings: NodeSettings, listen: ListenAddress
) -> AsyncIterator[Path]:
    """Run p2pd; the value is the path of its control socket in `folder`, once it answers.

    It writes to our stderr. At the end it may finish in order; an observer's p2pd, on which no peer
    depends, is killed.

    Raises:
        UserError: p2pd ends instead of starting.
    """
    socket_path = folder / "p2pd.sock"
    socket_path.with_suffix(".json").write_text(NO_RELAY)
    process = await asyncio.create_subprocess_exec(
        _binary(),
        *_arguments(settings, listen, socket_path),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr,
        env=os.environ | {"GOLOG_LOG_LEVEL": "error"},
        preexec_fn=_before_exec,
    )
    try:
        await _until_it_answers(process, socket_path, settings.log_path)
        yield socket_path
    finally:
        with contextlib.suppress(ProcessLookupError):
            (process.kill if settings.client_mode else process.terminate)()
        await end_process(process, STOP_SECONDS)


async def _until_it_answers(
    process: asyncio.subprocess.Process, socket_path: Path, log_path: str | None
) -> None:
    """Wait until p2pd accepts connections.

    Raises:
        UserError: The process ends instead.
    """
    while process.returncode is None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_unix_connection(socket_path)
            writer.close()
            return
        await asyncio.sleep(LOOK_EVERY_SECONDS)
    hint = f"see {log_path}" if log_path else "is hivemind installed completely?"
    raise UserError("the libp2p daemon stopped while starting", hint)


def _binary() -> str:
    """Return the path of p2pd, without importing hivemind, which takes two seconds."""
    package = importlib.util.find_spec("hivemind")
    if package is None or package.origin is None:
        install = shlex.join([sys.executable, "-m", "pip", "install", "hivemind"])
        raise UserError("hivemind is not installed", f"install it: `{install}`")
    return str(Path(package.origin).parent / "hivemind_cli" / "p2pd")


def _arguments(settings: NodeSettings, listen: ListenAddress, socket_path: Path) -> Sequence[str]:
    """Return the command line of p2pd.

    A volunteer's line serves this swarm only, so p2pd offers no service to others: it relays no
    connections (its default: 16 circuits of 4 GiB), dials no node on request (`autonat`), and opens
    no port of the router (`natPortMap`). The switch `relayService` does not end the relay of this
    p2pd: it starts another one while `relay` is on. And `relay=0` leaves the default as it is,
    which is on, so a file of settings changes the default.

    Bootstrap peers are missing on purpose: p2pd gives up at once when it cannot reach them,
    without a reason, while connecting to them afterwards shows what is wrong.
    """
    flags: dict[str, str | int] = {
        "listen": f"/unix{socket_path}",
        "hostAddrs": ",".join(listen.multiaddrs()),
        "dhtClient" if settings.client_mode else "dhtServer": 1,
        "autonat": 0,
        "natPortMap": 0,
        "relay": 0,
        "f": str(socket_path.with_suffix(".json")),
        "connManager": 1,
        "persistentConnMaxMsgSize": MAX_MESSAGE_BYTES,
        "tls": 1,
    }
    if settings.identity_path is not None:
        flags["id"] = settings.identity_path
    if settings.announce:
        flags["announceAddrs"] = ",".join(settings.announce)
    return [f"-{name}={value}" for name, value in flags.items()]


_CLOCKS = re.compile(r"within .* seconds.*local: ([0-9.]+), peer: ([0-9.]+)")
_OWN_KEY = "dial to self attempted"
"""Part of libp2p's message if an address has this node's own peer id."""
_OTHER_KEY = re.compile(r"remote key matches (\w+)")


def explain_unreachable(addresses: Sequence[str], failures: Sequence[str]) -> UserError:
    """Return the error for a start at which no address could be dialled.

    Args:
        addresses: Multiaddrs that were dialled.
        failures: libp2p's message for each address.
    """
    for address, failure in zip(addresses, failures, strict=True):
        if other := _OTHER_KEY.search(failure):
            return AddressError(
                f"another peer ({other[1]}) answers at {address}",
                "the node was restarted with another identity: ask for its current address",
            )
    where = addresses[0] if len(addresses) == 1 else f"any of the {len(addresses)} DHT nodes named"
    text = " ".join(failures)
    if all(_OWN_KEY in failure for failure in failures):
        return IdentityError(
            f"this identity is in use by another peer: {where} has the key of this state directory",
            "a copied state directory is no second peer: name an empty folder with --state FOLDER. "
            "To continue a run of your own, use `atom start` in its state directory",
        )
    if "connection refused" in text:
        return AddressError(
            f"cannot reach {where}: connection refused",
            "no process listens there: the run is over, or continues without that peer. Ask its "
            "owner or a participant: `atom info` on any of its peers shows a current address",
        )
    return AddressError(
        f"cannot reach {where}: {_brief(failures[0])}",
        "check the address and its host's name, that the node is running, and that a firewall lets "
        "its port through",
    )


def explain_refusal(text: str) -> AddressError:
    """Return the error for a DHT node that was reached but did not let us join."""
    clocks = _CLOCKS.search(text)
    if clocks is not None:
        ahead_s = float(clocks[1]) - float(clocks[2])
        relation = "ahead of" if ahead_s > 0 else "behind"
        return AddressError(
            f"this machine's clock is {format_seconds(abs(ahead_s))} {relation} the DHT's; "
            f"{CLOCKS_APART_SECONDS:.0f} s are tolerated",
            "set the clock (`timedatectl set-ntp true`; in WSL 2, where the clock stops while "
            "Windows sleeps: `sudo hwclock --hctosys`), then try again",
        )
    return AddressError(
        f"joining the DHT failed: {_brief(text)}",
        "is the address from a peer or `atom bootstrap`, and can that node connect to this "
        "machine? open the port of [network] listen in the firewall, or announce a reachable "
        "address",
    )


def _brief(text: str) -> str:
    return " ".join(text.split())[:300] or "no reason given"
