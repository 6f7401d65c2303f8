"""`atom start` and `atom join`: a daemon in the foreground.

`atom bootstrap` is here too: a DHT node through which others enter, without training.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atom.cli.shell.console import TerminalConsole
from atom.cli.shell.failures import ExitCode, Terminated
from atom.cli.shell.signals import run_to_the_end
from atom.config.load import load_peer_file
from atom.config.places import default_state_directory, named_state_directory
from atom.daemon.peer.addresses import announced_multiaddrs
from atom.daemon.peer.lifecycle import Ending
from atom.daemon.state_directory import StateDirectory
from atom.swarm.addresses import parse_listen, parse_multiaddrs
from atom.swarm.dht.directory import entrance
from atom.swarm.dht.p2pd import NodeSettings

DEFAULT_LISTEN = "0.0.0.0:31337"
"""Address of a bootstrap node; its port is fixed, because people write the address down."""
_CODES = {Ending.LEFT_LATE: ExitCode.LEFT_LATE, Ending.MONTH_USED: ExitCode.ALLOWANCE}
"""Exit codes of daemons that ended by their own decision, if not OK.

Leaving late is not an error, but work was lost, and scripts may want to know. A used-up allowance
has a code as well, because a start before the next month is refused.
"""


def in_foreground(daemon: Callable[[TerminalConsole], Ending], asks: bool = True) -> ExitCode:
    """Run a daemon, and block until it ends.

    Args:
        daemon: `run_start` or `run_join` with its arguments.
        asks: False: ask the owner no questions (`--yes`).

    Raises:
        UserError: The daemon cannot start or go on, for any reason.
    """
    with contextlib.closing(TerminalConsole(asks=asks)) as console:
        return _CODES.get(daemon(console), ExitCode.OK)


class PrintedEvents:
    """An `EventSink` that shows events to the user, because a bootstrap node keeps no journal."""

    def __init__(self, console: TerminalConsole) -> None:
        self._console = console

    def emit(self, kind: str, **fields: Any) -> None:
        """Print an event as a note, such as "dht process restarted"."""
        detail = f": {fields['detail']}" if "detail" in fields else ""
        self._console.note(kind.replace("-", " ") + detail)


def serve_bootstrap(
    listen: str | None, peer_file: Path | None, state: Path | None, initial_peers: Sequence[str]
) -> None:
    """Serve as a DHT node until SIGINT, SIGTERM or SIGHUP.

    The node's best address is the first line of stdout.

    Args:
        listen: HOST:PORT to listen on; None: as in the peer file, or DEFAULT_LISTEN without one.
        peer_file: Peer file, if the command line names one.
        state: State directory; None: as in the peer file, or the default directory.
        initial_peers: Addresses of DHT nodes to enter through.

    Raises:
        UserError: A ConfigError, AddressError, PortInUseError or StorageError.
    """
    peer = load_peer_file(peer_file)
    if listen is None:
        listen = DEFAULT_LISTEN if peer_file is None else peer.network.listen
    where = parse_listen(listen)
    root = named_state_directory(state, peer.state.directory)
    place = StateDirectory(root or default_state_directory("_bootstrap"))  # no run has this name
    node = NodeSettings(
        identity_path=str(place.identity),
        listen=str(where),
        announce=announced_multiaddrs(peer.network.announce, str(where)),
        initial_peers=parse_multiaddrs(tuple(initial_peers)),
        log_path=str(place.dht_log),
    )
    place.lock()
    with contextlib.closing(TerminalConsole()) as console:
        if place.key_warning:
            console.note(place.key_warning)
        try:
            with contextlib.suppress(KeyboardInterrupt, Terminated):
                run_to_the_end(_serve(node, console))
            console.note("the bootstrap node has stopped")
        finally:
            place.unlock()


async def _serve(node: NodeSettings, console: TerminalConsole) -> None:
    async with entrance(node, PrintedEvents(console)) as (best, *others):
        console.data(best)
        console.note(f"to found a run here: `atom start RUN.toml --initial-peers {best}`")
        for address in others:
            console.note(f"also reachable at {address}")
        await asyncio.Event().wait()
