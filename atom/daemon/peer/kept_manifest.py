"""The manifest that a state directory belongs to; whatever takes that run up is held to it."""

from pathlib import Path

from atom.base.errors import AddressError, MismatchError, PeerRefused, StorageError
from atom.config.load import normalised_run_text
from atom.config.run_file import RunFile
from atom.daemon.peer.box import Box
from atom.swarm.records.codec import decode_manifest
from atom.swarm.records.manifest import Manifest


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


def check_same_run(manifest: Manifest, run: RunFile, box: Box, path: Path) -> None:
    """Whether `run`, read from `path`, takes up the run kept here.
    Raises: AddressError, MismatchError."""
    if manifest.owner != box.identity.peer_id:
        raise AddressError(
            f"the run in {box.state.root} was founded by another peer",
            "take part in it with `atom join ADDRESS`, or start anew with another --state DIR",
        )
    if manifest.run_file != normalised_run_text(run):
        raise MismatchError(
            f"{path}, or the model it names, has changed since the run was founded "
            f"in {box.state.root}",
            "undo the change, or found a new run with another name or --state DIR",
        )
