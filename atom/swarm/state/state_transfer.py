"""Fetching a blob from several donors at once, every chunk checked before it counts.

One thread per donor asks for pieces of a common book (`pieces.py`); a donor that fails, lies or
stalls is dropped with a named reason and its pieces go to the others. Chunks that are already in
place with the right hash (an earlier, interrupted fetch; an older state) are not asked for again.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.state.arenas import bytes_of
from atom.swarm.state.blobs import BYTES_ARENA, RESULT_ARENA
from atom.swarm.state.fetch_options import Fetched, FetchOptions, Progress, Watch
from atom.swarm.state.fetching import Fetching, Source
from atom.swarm.state.manifest import Manifest
from atom.swarm.transport.transport import PeerTransport

__all__ = ["FetchOptions", "Fetched", "Progress", "Watch", "fetch", "fetch_bytes", "fetch_result"]


def fetch(
    transport: PeerTransport,
    donors: Sequence[str],
    name: str,
    options: FetchOptions,
    into: Path | Mapping[str, Tensor] | None = None,
    stop: threading.Event | None = None,
    watch: Watch | None = None,
) -> Fetched:
    """The blob `name` from `donors` (peer ids, preferred first).

    `into`: a directory (one file per arena; an interrupted fetch resumes there), tensors to fill
    (those that a state must have, by name), or None for new memory. After a failure their
    contents are a mixture and good only for resuming.

    Raises: PeerRefused with the last donor's reason when none is left (NOT_FOUND without donors,
    SUPERSEDED if `stop` was set); StorageError, MismatchError for a target that does not fit.
    """
    expected = options.expected_digest
    accepts = None if expected is None else lambda manifest: manifest.digest() == expected
    work = Fetching(Source(transport, tuple(donors), name), options, into, watch or Watch())
    return work.run(accepts, stop or threading.Event())


def fetch_result(
    transport: PeerTransport,
    donors: Sequence[str],
    digest: bytes,
    into: Tensor,
    options: FetchOptions,
    stop: threading.Event | None = None,
    watch: Watch | None = None,
) -> Fetched:
    """Fills `into` with the average of that `arena_digest`. Raises: as `fetch`."""
    source = Source(transport, tuple(donors), f"result/{digest.hex()}")
    wanted = [(RESULT_ARENA, digest)]

    def accepts(manifest: Manifest) -> bool:
        return [(arena.name, arena.digest()) for arena in manifest.arenas] == wanted

    work = Fetching(source, options, {RESULT_ARENA: into}, watch or Watch())
    return work.run(accepts, stop or threading.Event())


def fetch_bytes(
    transport: PeerTransport,
    donors: Sequence[str],
    name: str,
    options: FetchOptions,
    stop: threading.Event | None = None,
) -> bytes:
    """A blob that is plain bytes, from the first donor that has it; unverified unless expected.

    Raises: as `fetch`; PeerRefused(MALFORMED) if it is not plain bytes.
    """
    expected = options.expected_digest
    work = Fetching(Source(transport, tuple(donors), name), options, None, Watch())
    fetched = work.run(
        lambda manifest: expected is None or manifest.digest() == expected,
        stop or threading.Event(),
    )
    if fetched.arenas.keys() != {BYTES_ARENA}:
        raise PeerRefused(Reason.MALFORMED, f"{name} is not plain bytes")
    return bytes(bytes_of(fetched.arenas[BYTES_ARENA]))
