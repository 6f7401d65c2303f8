"""Settings of this machine for a peer: peer file, state directory and identity."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from atom.base.errors import ConfigError, TrustError
from atom.base.events import EventLog, EventSink
from atom.config.load import NO_OPTIONS, Options, load_peer_file
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory, named_state_directory
from atom.daemon.console import Console
from atom.daemon.state_directory import StateDirectory, own_identity
from atom.swarm.addresses import check_run_name, parse_join_address
from atom.swarm.chain.commit import Voter
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import Listed
from atom.swarm.router.ports import PortKeeper


@dataclass(frozen=True)
class Box:
    """Side of a peer that belongs to this machine: settings, directory, identity and outputs."""

    peer: PeerFile
    peer_file: Path
    """Path of the peer file, which may not exist."""
    state: StateDirectory
    identity: Identity
    incarnation: bytes
    """16 random bytes that distinguish this process from others with the same identity."""
    events: EventSink
    """Sink of all events of this process. The log needs a single writer: two would cut off each
    other's lines."""
    console: Console
    options: Options
    """Options of the command line that replace keys of the peer file."""
    ports: PortKeeper
    """Keeper of the ports that the home router opens, if any."""
    entrances: tuple[str, ...] = ()
    """Multiaddrs of DHT nodes through which the peer enters the run; empty if its node is the
    first."""

    @property
    def me(self) -> Voter:
        """Identity of this process as a voter: peer id and incarnation."""
        return Voter(self.identity.peer_id, self.incarnation)


def open_box(
    run_name: str,
    peer_file: Path | None,
    state: Path | None,
    console: Console,
    options: Options = NO_OPTIONS,
) -> Box:
    """Read the peer file, lock the state directory, and load or create the identity.

    Args:
        run_name: name of the run, which names the default state directory.
        peer_file: path of the peer file; None: the one in the state directory, if it exists.
        state: the state directory; None: as the peer file says, or the run's default.
        console: gets a warning if other users may read the private key.
        options: options of the command line that replace keys of the peer file.

    Raises:
        ConfigError: the peer file is not valid.
        StorageError: the state directory cannot be used, or another daemon uses it.
    """
    peer = load_peer_file(peer_file, options)
    named = named_state_directory(state, peer.state.directory)
    directory = StateDirectory(named or default_state_directory(run_name))
    directory.lock()
    if directory.key_warning:
        console.note(directory.key_warning)
    if peer_file is None:
        peer = kept_peer(directory, options)
    events = EventLog(directory.events)
    return Box(
        peer,
        (peer_file or directory.peer_file).absolute(),
        directory,
        Identity.load_or_create(directory.identity),
        secrets.token_bytes(16),
        events,
        console,
        options,
        PortKeeper(events),
    )


def kept_peer(directory: StateDirectory, options: Options = NO_OPTIONS) -> PeerFile:
    """Return the peer file in the state directory, or the defaults if there is none.

    Args:
        directory: the state directory.
        options: options of the command line that replace keys of the peer file.

    Raises:
        ConfigError: the file is not valid.
    """
    return load_peer_file(directory.peer_file if directory.peer_file.exists() else None, options)


def own_peer_id(run: str | None, peer_file: Path | None, state: Path | None) -> str:
    """Return the peer id that `atom join` would use with the same options.

    The identity is created if there is none yet.

    Args:
        run: name or address of a run; None if the state directory is named.
        peer_file: path of the peer file; None: defaults.
        state: the state directory; None: as the peer file says, or the run's default.

    Raises:
        ConfigError: neither a run nor a directory is named, or the name is not valid.
        AddressError: the address is not valid.
        StorageError: the directory cannot be used, or the key file is damaged.
    """
    root = named_state_directory(state, load_peer_file(peer_file).state.directory)
    name = run
    if run is not None:
        name = parse_join_address(run).run if run.startswith("/") else check_run_name(run)
    if root is None:
        if name is None:
            raise ConfigError(
                "a peer has a separate identity for each run",
                "name the run or its address: `atom id RUN`; or the directory: --state DIR",
            )
        root = default_state_directory(name)
    directory = StateDirectory(root)
    if (known := own_identity(root)) is not None:
        return known.peer_id
    directory.lock()  # two processes must not create two identities
    try:
        return Identity.load_or_create(directory.identity).peer_id
    finally:
        directory.unlock()


def check_member(listed: Listed, owner: str, peer_id: str) -> None:
    """Refuse a peer that the run's owner has not listed.

    Args:
        listed: peer ids that may take part; None: all may.
        owner: peer id of the run's owner.
        peer_id: our peer id.

    Raises:
        TrustError: the peer is not listed.
    """
    if listed is not None and peer_id not in listed:
        raise TrustError(
            f"this run is open to listed peers only, and this peer is not listed: {peer_id}",
            f"ask its owner {owner} to list it in their next run; "
            "if they have listed the peer of another state directory, name that with --state DIR",
        )
