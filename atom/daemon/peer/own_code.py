"""A run's own code on a volunteer's machine: fetched as a file, run only for a trusted owner.

The manifest, which the owner signed, names the sha256 of one source file. Whoever is asked for it
can only give that file or none, and having it does nothing: it lies in the state directory, to be
read, until `--trust` names the run's owner.
"""

import contextlib
import hashlib
import random
import time
from collections.abc import Mapping
from functools import partial

from atom.base.errors import AddressError, PeerRefused, TrustError
from atom.config.run_file import RunFile
from atom.daemon.model.model_source import kept_code
from atom.daemon.peer.addresses import dialled_by
from atom.daemon.peer.box import Box, JoinOptions
from atom.daemon.peer.heartbeat import DirectoryThread
from atom.daemon.state_directory import write_atomically
from atom.models.own_code import MAX_CODE_BYTES, OwnCode
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.manifest import Manifest, listed_peers, manifest_digest
from atom.swarm.state.fetch import asking
from atom.swarm.stream.frames import Pace
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport

FETCH_S = 30.0
"""For finding somebody who has the file: a run that was founded a moment ago has nobody yet."""
_RETRY_S = 0.5
_PATIENCE_S = 5.0


def blob_name(run: RunFile) -> str:
    """What the file is called among peers."""
    return f"code/{run.model.module_sha256}"


def check_trust(owner: str, trusted: str | None) -> None:
    """Raises: TrustError if `--trust` names somebody else than the run's owner."""
    if trusted is not None and trusted != owner:
        raise TrustError(
            f"you trust {trusted}, but this run is {owner}'s",
            "ask the owner for their key, on another way than you got the address",
        )


def obtain_code(
    run: RunFile,
    manifest: Manifest,
    options: JoinOptions,
    box: Box,
    directory: DirectoryThread,
) -> OwnCode | None:
    """The run's own code, if it has any: from the state directory, else from a peer.

    Raises: TrustError unless `options` trust the run's owner; AddressError if nobody has it.
    """
    if run.model.module is None:
        return None
    code = kept_code(run, box.state.own_code)
    if code is None:
        content = _fetch(run, manifest, box, directory)
        write_atomically(box.state.own_code, content)
        code = OwnCode(run.model.module, content, box.state.own_code)
    if options.trust != manifest.owner:
        raise TrustError(
            f"this run's model is code of its owner {manifest.owner}; "
            f"nothing of it was run, it is saved in {code.path}",
            f"read it, and if you trust it: `atom join {options.address} --trust {manifest.owner}`",
        )
    return code


def _fetch(run: RunFile, manifest: Manifest, box: Box, directory: DirectoryThread) -> bytes:
    """The file that the manifest names, from whoever has it. Raises: AddressError."""
    listed = listed_peers(manifest.owner, run.swarm.members)
    local = Local(box.identity, manifest_digest(manifest), box.incarnation, listed)
    dialled = partial(dialled_by, box.peer.network, box.listen, box.entrances)
    transport = Transport(local, None, box.events, dialled=dialled)
    try:
        deadline = time.monotonic() + FETCH_S
        while time.monotonic() < deadline:
            with contextlib.suppress(DirectoryUnavailable, TimeoutError):
                leases = directory.call(directory.directory.read_leases())
                content = ask_for_code(transport, run, leases, manifest.owner)
                if content is not None:
                    return content
            time.sleep(_RETRY_S)  # nothing to wait on: peers that have it may appear at any time
    finally:
        transport.close()
    raise AddressError(
        "the run's model is its owner's code, and no peer that has it can be reached",
        "try again when its owner, or another peer of it, is there",
    )


def ask_for_code(
    transport: Transport,
    run: RunFile,
    leases: Mapping[str, Lease],
    owner: str,
) -> bytes | None:
    """The file from one of these peers, the owner first; None: nobody gave the right one. The
    others come in any order: whoever is slow must not always be first.
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
