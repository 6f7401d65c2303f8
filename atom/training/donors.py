"""What others serve to catch up from, and how it is fetched. The names are `shelf.py`'s."""

import json
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.state_transfer import FetchOptions, Watch, fetch, fetch_bytes, fetch_result
from atom.swarm.transport import PeerTransport
from atom.training.shelf import MAX_OFFERS, SNAPSHOTS

Arenas = dict[str, torch.Tensor]
MAX_CHAIN_BYTES = 1 << 30
MAX_OFFERS_BYTES = 16 * 1024
_ATTEMPTS = 3


@dataclass(frozen=True)
class Offer:
    """A snapshot that a donor serves."""

    round: int
    head: bytes


class Donors(Protocol):
    """What other peers serve. Every call raises PeerRefused or OSError when it fails."""

    def chain(self, peer_id: str, head: bytes) -> bytes: ...
    def offers(self, peer_id: str) -> list[Offer]: ...
    def state(self, offer: Offer, peers: Sequence[str], digest: bytes | None) -> Arenas:
        """`digest`: what the state's must be; None: what most of the peers say."""
        ...

    def result(self, digest: bytes, peers: Sequence[str]) -> torch.Tensor: ...
    def forget(self, offer: Offer) -> None:
        """The state is loaded: what was downloaded for it may go."""


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
    """`Donors` over the transport."""

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
                return fetch_bytes(self._transport, [peer_id], SNAPSHOTS, options, stop=self._stop)
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
