"""`atom start` and `atom join`: a daemon in the foreground."""

from pathlib import Path

from atom.cli.shell.console import TerminalConsole
from atom.cli.shell.exit_codes import ExitCode
from atom.cli.shell.options import parse_trust
from atom.daemon.peer.box import JoinOptions, StartOptions
from atom.daemon.peer.lifecycle import Ending
from atom.daemon.peer.peer import run_join, run_start
from atom.extras.extensions import all_extensions
from atom.swarm.addresses import parse_listen, parse_multiaddrs


def found_run(options: StartOptions) -> ExitCode:
    """Blocks until the daemon ends. Raises: UserError of every kind."""
    if options.listen is not None:
        parse_listen(options.listen)  # arguments are refused before anything is touched
    parse_multiaddrs(options.initial_peers)
    console = TerminalConsole()
    try:
        return code_of(run_start(options, console, all_extensions()))
    finally:
        console.close()


def join_run(
    address: str, peer_file: Path | None, state: Path | None, trust: str | None
) -> ExitCode:
    """Blocks until the daemon ends. Raises: typer.BadParameter; UserError of every kind."""
    trust = parse_trust(trust)
    console = TerminalConsole()
    try:
        options = JoinOptions(address, peer_file, state, trust)
        return code_of(run_join(options, console, all_extensions()))
    finally:
        console.close()


def code_of(ending: Ending) -> ExitCode:
    """Leaving late is no error of anyone's, but work was lost: scripts may want to know."""
    return ExitCode.LEFT_LATE if ending is Ending.LEFT_LATE else ExitCode.OK
