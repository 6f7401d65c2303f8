"""What a daemon was asked, and this machine's side of it: what it gives, where it keeps things."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atom.base.events import EventLog
from atom.config.load import load_peer_file
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory, named_state_directory
from atom.daemon.state_directory import StateDirectory
from atom.swarm.chain.commit import Voter
from atom.swarm.identity import Identity


@dataclass(frozen=True)
class StartOptions:
    """`atom start`."""

    run_file: Path
    peer_file: Path | None = None
    state: Path | None = None
    listen: str | None = None
    initial_peers: tuple[str, ...] = ()
    weights: Path | None = None
    """A folder to begin from, instead of from the run's seed."""


@dataclass(frozen=True)
class JoinOptions:
    """`atom join`."""

    address: str
    peer_file: Path | None = None
    state: Path | None = None
    trust: str | None = None
    """Peer id of the owner whose code may run here."""


@dataclass(frozen=True)
class Box:
    """This machine's side: what it gives, where it keeps things, who it is."""

    peer: PeerFile
    peer_place: Path
    """Where that is written, or would be."""
    state: StateDirectory
    identity: Identity
    incarnation: bytes
    events: EventLog
    """What is written down of it, by whomever: two writers would cut off each other's lines."""
    take_device: Callable[[], None] = lambda: None
    """Returns when the device may be set up: another run may have its turn."""

    @property
    def me(self) -> Voter:
        return Voter(self.identity.peer_id, self.incarnation)


def open_box(run_name: str, peer_file: Path | None, state: Path | None) -> Box:
    """Reads the peer file, claims the state directory; without a peer file, the one that is kept
    there. Raises: ConfigError, StorageError."""
    peer = load_peer_file(peer_file)
    named = named_state_directory(state, peer.state.directory)
    directory = StateDirectory(named or default_state_directory(run_name))
    directory.lock()
    if peer_file is None:
        peer = kept_peer(directory)
    identity = Identity.load_or_create(directory.identity)
    place = (peer_file or directory.peer_file).absolute()
    events = EventLog(directory.events)
    return Box(peer, place, directory, identity, secrets.token_bytes(16), events)


def kept_peer(directory: StateDirectory) -> PeerFile:
    """The peer file of a daemon that was named none, if there is one. Raises: ConfigError."""
    return load_peer_file(directory.peer_file if directory.peer_file.exists() else None)
