"""What this peer offers others to catch up from, and how it fetches the same from them.

    chain/<head>      the commits from genesis to that head, as bytes
    snapshots         which states are offered: a JSON list of [round, head]
    state/<head>      a state's arenas, read from a snapshot file
    result/<digest>   one averaged gradient

Only immutable things are offered, from files or copies: a joiner never sees a half-made step, and
never makes anybody wait.
"""

import json
import shutil
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.arena_sources import FileBytes
from atom.swarm.blobs import BlobShelf
from atom.swarm.state_transfer import FetchOptions, Watch, fetch, fetch_bytes, fetch_result
from atom.swarm.transport import PeerTransport
from atom.training.catch_up import Arenas, Offer
from atom.training.journal import Journal
from atom.training.results import Results
from atom.training.snapshot import Snapshot

KEPT_CHAINS = 8
"""A reader may have learned our head from a lease that is some rounds old."""
MAX_CHAIN_BYTES = 1 << 30
MAX_OFFERS_BYTES = 16 * 1024
MAX_OFFERS = 64
_SNAPSHOTS = "snapshots"
_ATTEMPTS = 3


class Shelf:
    """Keeps the blob shelf in step with the journal, the results and the snapshots."""

    def __init__(self, blobs: BlobShelf, journal: Journal, results: Results) -> None:
        self._blobs = blobs
        self._journal = journal
        self._results = results
        self._chains: deque[str] = deque()
        self._states: set[str] = set()

    def announce_chain(self) -> None:
        """After each change of the journal: offers its chain and the results on disk."""
        name = f"chain/{self._journal.head.digest.hex()}"
        path, size_bytes = self._journal.file
        if size_bytes:
            self._blobs.register(name, FileBytes(path, size_bytes))
        if name not in self._chains:
            self._chains.append(name)
        while len(self._chains) > KEPT_CHAINS:
            self._blobs.remove(self._chains.popleft())
        self.announce_results()

    def announce_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        """Offers exactly these states."""
        names = set()
        for snapshot in snapshots:
            name = f"state/{snapshot.head.hex()}"
            names.add(name)
            if name not in self._states:
                self._blobs.register(name, snapshot.path, snapshot.head, snapshot.round)
        for gone in self._states - names:
            self._blobs.remove(gone)
        self._states = names
        listed = json.dumps([[s.round, s.head.hex()] for s in snapshots])
        self._blobs.register(_SNAPSHOTS, listed.encode())
        self.announce_results()

    def announce_results(self) -> None:
        """Offers what is on disk, and nothing else."""
        offered = {name for name in self._blobs.names() if name.startswith("result/")}
        stored = {f"result/{digest.hex()}": digest for digest in self._results.stored()}
        for name in offered - set(stored):
            self._blobs.remove(name)
        for name in set(stored) - offered:
            self._blobs.register(name, self._results.path(stored[name]))


def parse_offers(raw: bytes) -> list[Offer]:
    """A stranger's list of snapshots, at most `MAX_OFFERS`. Raises: PeerRefused(MALFORMED)."""
    try:
        listed = json.loads(raw)
        offers = [(rnd, bytes.fromhex(head)) for rnd, head in listed]
    except (ValueError, TypeError, RecursionError) as problem:
        raise PeerRefused(Reason.MALFORMED, "list of snapshots") from problem
    sane = all(type(rnd) is int and 0 <= rnd < 2**63 and len(head) == 32 for rnd, head in offers)
    if not sane or len(offers) > MAX_OFFERS:
        raise PeerRefused(Reason.MALFORMED, "list of snapshots")
    return [Offer(rnd, head) for rnd, head in offers]


class PeerDonors:
    """`atom.training.catch_up.Donors` over the transport."""

    def __init__(
        self,
        transport: PeerTransport,
        elements: int,
        state: Mapping[str, torch.dtype],
        downloads: Path,
        watch: Watch,
    ) -> None:
        """`state`: the arenas of this run's state by name, each of `elements`."""
        self._transport = transport
        self._elements = elements
        self._state = state
        self._downloads = downloads
        self._watch = watch
        self._stop = threading.Event()

    def close(self) -> None:
        """Ends fetches under way."""
        self._stop.set()

    def chain(self, peer_id: str, head: bytes) -> bytes:
        options = FetchOptions(MAX_CHAIN_BYTES)
        name = f"chain/{head.hex()}"
        return fetch_bytes(self._transport, [peer_id], name, options, stop=self._stop)

    def offers(self, peer_id: str) -> list[Offer]:
        """What a donor says it has. Raises: PeerRefused, OSError."""
        return parse_offers(self._offers_bytes(peer_id))

    def _offers_bytes(self, peer_id: str) -> bytes:
        """The list may change between its digest and its content: then it is asked for again."""
        options = FetchOptions(MAX_OFFERS_BYTES)
        for attempt in range(_ATTEMPTS):
            try:
                return fetch_bytes(self._transport, [peer_id], _SNAPSHOTS, options, stop=self._stop)
            except PeerRefused as refused:
                if refused.reason is not Reason.HASH_MISMATCH or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def state(self, offer: Offer, peers: Sequence[str], digest: bytes | None) -> Arenas:
        """Resumes what an interrupted fetch of the same state left in the downloads folder.

        Raises: PeerRefused, OSError.
        """
        name = f"state/{offer.head.hex()}"
        element_bytes = sum(dtype.itemsize for dtype in self._state.values())
        limit = element_bytes * self._elements + (1 << 20)
        options = FetchOptions(limit, expected_digest=digest)
        fetched = fetch(
            self._transport,
            peers,
            name,
            options,
            into=self._folder(offer),
            stop=self._stop,
            watch=self._watch,
        )
        for name, dtype in self._state.items():
            arena = fetched.arenas.get(name)
            if arena is None or arena.dtype != dtype or arena.numel() != self._elements:
                self.forget(offer)
                raise PeerRefused(Reason.MALFORMED, f"the state's {name} is not of this model")
        return fetched.arenas

    def forget(self, offer: Offer) -> None:
        shutil.rmtree(self._folder(offer), ignore_errors=True)

    def _folder(self, offer: Offer) -> Path:
        return self._downloads / offer.head.hex()[:16]

    def result(self, digest: bytes, peers: Sequence[str]) -> torch.Tensor:
        options = FetchOptions(4 * self._elements + (1 << 20))
        result = torch.zeros(self._elements)
        quiet = replace(self._watch, on_progress=lambda done, total: None)
        fetch_result(self._transport, peers, digest, result, options, stop=self._stop, watch=quiet)
        return result
