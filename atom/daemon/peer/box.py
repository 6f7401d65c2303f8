"""What a daemon was asked, and this machine's side of it: what it gives, where it keeps things, who
it is, and whose run it is in."""

import secrets
from dataclasses import dataclass
from pathlib import Path

from atom.base.errors import (
    AddressError,
    ConfigError,
    MismatchError,
    PeerRefused,
    StorageError,
    TrustError,
)
from atom.base.events import EventLog, EventSink
from atom.config.load import load_peer_file
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory, named_state_directory
from atom.daemon.console import Console
from atom.daemon.state_directory import StateDirectory, own_identity
from atom.swarm.addresses import check_run_name, parse_join_address
from atom.swarm.chain.commit import Voter
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import Listed, Manifest, decode_manifest


@dataclass(frozen=True)
class StartOptions:
    """`atom start`."""

    run_file: Path
    peer_file: Path | None = None
    state: Path | None = None
    listen: str | None = None
    initial_peers: tuple[str, ...] = ()
    weights: Path | None = None
    """Folder with weights, or state directory of a run, to begin from; None: the run's seed."""


@dataclass(frozen=True)
class JoinOptions:
    """`atom join`."""

    address: str
    peer_file: Path | None = None
    state: Path | None = None
    trust: str | None = None
    """KEY:SHA256 of the owner and the code that may run here."""
    weights: Path | None = None
    """A folder with what the run began from, for what is frozen of it."""


@dataclass(frozen=True)
class Box:
    """This machine's side: what it gives, where it keeps things, who it is."""

    peer: PeerFile
    peer_file: Path
    """Where that is written, or would be."""
    state: StateDirectory
    identity: Identity
    incarnation: bytes
    events: EventSink
    """What is written down of it, by whomever: two writers would cut off each other's lines."""
    console: Console
    listen: str
    """Where its DHT node listens."""
    entrances: tuple[str, ...] = ()
    """Multiaddrs through which it enters the run; empty: it founds one."""

    @property
    def me(self) -> Voter:
        return Voter(self.identity.peer_id, self.incarnation)


def open_box(
    run_name: str,
    peer_file: Path | None,
    state: Path | None,
    console: Console,
    listen: str | None = None,
) -> Box:
    """Reads the peer file, claims the state directory; without a peer file, the one that is kept
    there. `listen`: instead of what the peer file says. Raises: ConfigError, StorageError."""
    peer = load_peer_file(peer_file)
    named = named_state_directory(state, peer.state.directory)
    directory = StateDirectory(named or default_state_directory(run_name))
    directory.lock()
    if directory.key_warning:
        console.note(directory.key_warning)
    if peer_file is None:
        peer = kept_peer(directory)
    return Box(
        peer,
        (peer_file or directory.peer_file).absolute(),
        directory,
        Identity.load_or_create(directory.identity),
        secrets.token_bytes(16),
        EventLog(directory.events),
        console,
        listen or peer.network.listen,
    )


def kept_peer(directory: StateDirectory) -> PeerFile:
    """The peer file of a daemon that was named none, if there is one. Raises: ConfigError."""
    return load_peer_file(directory.peer_file if directory.peer_file.exists() else None)


def own_peer_id(run: str | None, peer_file: Path | None, state: Path | None) -> str:
    """The id of the peer that `atom join` with the same options would be; made now if it is new.

    `run`: a run's name or address. Raises: ConfigError, AddressError, StorageError.
    """
    root = named_state_directory(state, load_peer_file(peer_file).state.directory)
    name = run
    if run is not None:
        name = parse_join_address(run).run if run.startswith("/") else check_run_name(run)
    if root is None:
        if name is None:
            raise ConfigError(
                "a peer has an identity for each run",
                "name the run or its address: `atom id RUN`; or the directory: --state DIR",
            )
        root = default_state_directory(name)
    directory = StateDirectory(root)
    if (known := own_identity(root)) is not None:
        return known.peer_id
    directory.lock()  # two processes must not make two identities
    try:
        return Identity.load_or_create(directory.identity).peer_id
    finally:
        directory.unlock()


# ---- the run that a state directory belongs to


def check_member(listed: Listed, owner: str, peer_id: str) -> None:
    """Raises: TrustError for a peer that the run's owner has not listed."""
    if listed is not None and peer_id not in listed:
        raise TrustError(
            f"this run is open to those its owner has listed, and this peer is not: {peer_id}",
            f"ask its owner {owner} to list it in their next run; "
            "if they have listed the peer of another state directory, name that with --state DIR",
        )


def read_manifest(box: Box, run_name: str) -> tuple[Manifest, bytes] | None:
    """With its owner's signature; None: this directory belongs to no run yet.
    Raises: StorageError."""
    try:
        record = box.state.manifest.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise StorageError(
            f"{box.state.manifest} cannot be read: {problem.strerror or problem}",
            "check its rights and its disk, or choose another directory with --state DIR",
        ) from problem
    try:
        return decode_manifest(record, run_name), record
    except PeerRefused as refused:
        raise StorageError(
            f"{box.state.root} holds another run than {run_name!r} ({refused})",
            "choose another directory with --state DIR",
        ) from refused


def check_same_run(manifest: Manifest, run_text: str, box: Box, path: Path) -> None:
    """Whether `run_text`, read from `path`, takes up the run kept here.
    Raises: AddressError, MismatchError."""
    if manifest.owner != box.identity.peer_id:
        raise AddressError(
            f"the run in {box.state.root} was founded by another peer",
            "take part in it with `atom join ADDRESS`, or start anew with another --state DIR",
        )
    if manifest.run_file != run_text:
        raise MismatchError(
            f"{path}, or the model it names, has changed since the run was founded "
            f"in {box.state.root}",
            "undo the change, or found a new run with another name or --state DIR",
        )
