"""A run's own code on a volunteer's machine: fetched as a file, executed only if trusted by digest.

The manifest, which the owner signed, names the sha256 of one source file. A peer that is asked for
the file can give this file or no file. The file lies in the state directory, to be read, until
`--trust OWNER:SHA256` names both the run's owner and this file: trust in a key alone would let a
stolen key execute code on the machine of everyone who joins later.
"""

import contextlib
import hashlib
import random
import time
from collections.abc import Mapping
from functools import partial

from atom.base.errors import AddressError, PeerRefused, TrustError
from atom.config.run_file import PinnedRun
from atom.daemon.peer.addresses import dialled_by
from atom.daemon.peer.box import Box
from atom.daemon.peer.heartbeat import DirectoryThread
from atom.daemon.state_directory import write_atomically
from atom.models.module_source import MAX_CODE_BYTES, OwnCode, kept_code
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.manifest import Manifest, listed_peers, manifest_digest
from atom.swarm.records.store import DirectoryUnavailable
from atom.swarm.state.fetch import asking
from atom.swarm.stream.frames import Pace
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport

FETCH_S = 30.0
"""Longest wait for a peer that offers the file: right after a run is founded, none may do so."""
_RETRY_S = 0.5
_PATIENCE_S = 5.0


def blob_name(run: PinnedRun) -> str:
    """Return the name by which peers ask each other for the file."""
    return f"code/{run.model.module_sha256}"


def check_trust(owner: str, sha256: str | None, trusted: str | None) -> None:
    """Raise if `--trust` names another owner or other code than the run's.

    Args:
        owner: peer id of the run's owner.
        sha256: digest of the run's own code in hex; None: it has none.
        trusted: the value of `--trust`, KEY or KEY:SHA256.

    Raises:
        TrustError: they differ.
    """
    key, _, digest = (trusted or owner).partition(":")
    hint = "ask the owner for the value of --trust, not by the channel that gave you the address"
    if key != owner:
        raise TrustError(f"you trust {key}, but this run is {owner}'s", hint)
    if sha256 and digest and digest != sha256:
        raise TrustError(f"you trust the code {digest}, but this run's is {sha256}", hint)


def obtain_code(
    run: PinnedRun,
    manifest: Manifest,
    address: str,
    trust: str | None,
    box: Box,
    directory: DirectoryThread,
) -> OwnCode | None:
    """Return the run's own code, if it has any, from the state directory or a peer.

    Args:
        run: the run.
        manifest: manifest of the run, which names owner and code.
        address: address of the run, for a command that the user can copy.
        trust: the value of `--trust`; None: not given.
        box: this machine's settings and state directory.
        directory: directory of the run, to find peers that have the code.

    Returns:
        Code that the user has allowed to run; None for a run whose model needs none.

    Raises:
        TrustError: `--trust` does not name the run's owner and this code.
        AddressError: no reachable peer has the file.
    """
    if run.model.module is None:
        return None
    code = kept_code(run.model.module, box.state.own_code, run.model.module_sha256)
    if code is None:
        content = _fetch(run, manifest, box, directory)
        write_atomically(box.state.own_code, content)
        code = OwnCode(run.model.module, content, box.state.own_code)
    wanted = code.trust_of(manifest.owner)
    if trust != wanted:
        raise TrustError(
            f"this run's model is code of its owner {manifest.owner}, with the sha256 "
            f"{code.sha256}; it was not executed, but saved in {code.path}",
            f"read it, and if you trust it: `atom join {address} --trust {wanted}`",
        )
    return code


def _fetch(run: PinnedRun, manifest: Manifest, box: Box, directory: DirectoryThread) -> bytes:
    """Fetch the file that the manifest names from any peer. Raises: AddressError."""
    listed = listed_peers(manifest.owner, run.swarm.members)
    local = Local(box.identity, manifest_digest(manifest), box.incarnation, listed)
    transport = Transport(local, None, box.events, dialled=partial(dialled_by, box))
    try:
        deadline = time.monotonic() + FETCH_S
        while time.monotonic() < deadline:
            with contextlib.suppress(DirectoryUnavailable, TimeoutError):
                leases = directory.call(directory.directory.read_leases())
                content = ask_for_code(transport, run, leases, manifest.owner)
                if content is not None:
                    return content
            time.sleep(_RETRY_S)  # no event to wait for: peers with the file may appear at any time
    finally:
        transport.close()
    raise AddressError(
        "the run's model is its owner's code, and no peer that has it can be reached",
        "try again when the owner, or another peer of the run, is online",
    )


def ask_for_code(
    transport: Transport,
    run: PinnedRun,
    leases: Mapping[str, Lease],
    owner: str,
) -> bytes | None:
    """Ask these peers for the file, the owner first and the others in random order.

    The order is random so that a slow peer does not delay every joiner.

    Args:
        transport: transport of this peer.
        run: the run, which names the code and its sha256.
        leases: leases of the peers to ask, by peer id.
        owner: peer id of the run's founder.

    Returns:
        The content, whose sha256 is the run's; None if no peer gave it.
    """
    others = random.sample(sorted(leases), len(leases))
    for peer_id in sorted(others, key=lambda peer_id: peer_id != owner):
        if peer_id == transport.peer_id or leases[peer_id].state is PeerState.LEFT:
            continue
        transport.set_addresses(peer_id, leases[peer_id].addresses)
        try:
            with asking(transport, peer_id, Pace(slack_s=_PATIENCE_S)) as ask:
                content = ask(blob_name(run), MAX_CODE_BYTES)
        except (PeerRefused, OSError):
            continue
        if hashlib.sha256(content).hexdigest() == run.model.module_sha256:
            return content
    return None
