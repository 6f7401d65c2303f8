"""Being let into a run: who this peer is, before it takes part, and whether it may."""

from pathlib import Path

from atom.base.errors import ConfigError, TrustError
from atom.config.load import load_peer_file
from atom.config.places import default_state_directory, named_state_directory
from atom.daemon.console import Console
from atom.daemon.own_identity import own_identity
from atom.daemon.state_directory import StateDirectory
from atom.swarm.addresses import check_run_name, parse_join_address
from atom.swarm.identity import Identity
from atom.swarm.records.manifest import AllowList


def check_member(allowed: AllowList, owner: str, peer_id: str) -> None:
    """Raises: TrustError for a peer that the run's owner has not listed."""
    if not allowed.holds(peer_id):
        raise TrustError(
            f"this run is open to those its owner has listed, and this peer is not: {peer_id}",
            f"ask its owner {owner} to list it in their next run; "
            "if they have listed the peer of another state directory, name that with --state DIR",
        )


def say_list(allowed: AllowList, console: Console) -> None:
    """To a peer that is let in. Of an open run there is nothing to say."""
    if allowed.peer_ids is not None:
        number = len(allowed.peer_ids)
        console.note(f"peers that may take part, by the owner's list: {number}, you among them")


def own_peer_id(run: str | None, peer_file: Path | None, state: Path | None) -> str:
    """The id of the peer that `atom join` with the same options would be; made now if it is new.

    `run`: a run's name or address. Raises: ConfigError, AddressError, StorageError.
    """
    root = named_state_directory(state, load_peer_file(peer_file).state.directory)
    name = None if run is None else _name_of(run)
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


def _name_of(run: str) -> str:
    """Raises: AddressError."""
    return parse_join_address(run).run if run.startswith("/") else check_run_name(run)
