"""What others serve to catch up from, and how it is fetched. The names are `storage/shelf.py`'s."""

import json
import math
import shutil
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit_chain import MAX_CHAIN_BYTES, chain_name
from atom.swarm.chain.ring_standing import Pace
from atom.swarm.state.fetch_target import landed_bytes
from atom.swarm.state.state_transfer import (
    Fetched,
    FetchOptions,
    Watch,
    fetch,
    fetch_bytes,
    fetch_result,
)
from atom.swarm.transport.transport import PeerTransport
from atom.training.storage.shelf import MAX_OFFERS, SNAPSHOTS

Arenas = dict[str, torch.Tensor]
MAX_OFFERS_BYTES = 16 * 1024
_ATTEMPTS = 3
CHAIN_S, LONGEST_CHAIN_S = 15.0, 960.0
"""For a donor's whole chain; twice as long each time that it was not enough. It cannot be checked
before it is there, and who waits for a liar's has no part in any round."""
_OFFERS_PACE = Pace(slack_s=15.0)


@dataclass(frozen=True)
class Offer:
    """A snapshot that a donor serves."""

    round: int
    head: bytes


class Donors(Protocol):
    """What other peers serve. Every call raises PeerRefused or OSError when it fails."""

    @property
    def closed(self) -> bool:
        """Whether this peer ends, and needs no state any more. From any thread."""
        ...

    def chain(self, peer_id: str, head: bytes, since: int) -> bytes:
        """The commits after round `since` that lead to the peer's head."""
        ...

    def offers(self, peer_id: str) -> list[Offer]: ...
    def state(
        self, offer: Offer, peers: Sequence[str], digest: bytes | None, into: Arenas | None
    ) -> Arenas:
        """`digest`: what the state's must be; None: what most of the peers say. `into`: arenas to
        fill; None: files, in which an interrupted fetch goes on. Raises also: StorageError."""
        ...

    def begun(self, offer: Offer) -> int:
        """Bytes of that state that an interrupted fetch left here."""
        ...

    def result(self, digest: bytes, peers: Sequence[str], pace: Pace | None = None) -> torch.Tensor:
        """`pace`: the least that must come; None: as long as anything comes."""
        ...

    def forget(self, but: Collection[Offer] = ()) -> None:
        """Whatever was downloaded may go, `but` for these states."""

    def reject(self, offer: Offer) -> None:
        """What was downloaded of that state is of no use; other states stay."""

    def take_liars(self) -> set[str]:
        """Who gave what does not hold since this was last asked: also beside honest donors, where
        it cost a piece and nothing else."""
        ...


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
        self._watch = replace(watch, on_lie=self._on_lie)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._liars: set[str] = set()
        self._chain_s: dict[str, float] = {}
        """What the next one of a donor may take, where the last one was not there in time."""

    def take_liars(self) -> set[str]:
        with self._lock:
            taken, self._liars = self._liars, set()
        return taken

    def _on_lie(self, donor: str, reason: Reason) -> None:
        with self._lock:
            self._liars.add(donor)

    def close(self) -> None:
        """Ends fetches under way, and whatever else is done to have a state."""
        self._stop.set()

    @property
    def closed(self) -> bool:
        return self._stop.is_set()

    def chain(self, peer_id: str, head: bytes, since: int) -> bytes:
        limit_s = self.chain_s(peer_id)
        in_time = Pace(slack_s=limit_s, bytes_per_s=math.inf)
        options, name = FetchOptions(MAX_CHAIN_BYTES, pace=in_time), chain_name(head, since)
        try:
            raw = fetch_bytes(self._transport, [peer_id], name, options, stop=self._stop)
        except PeerRefused as refused:
            if refused.reason is Reason.TOO_SLOW:
                self._chain_s[peer_id] = min(2 * limit_s, LONGEST_CHAIN_S)
            raise
        self._chain_s.pop(peer_id, None)
        return raw

    def chain_s(self, peer_id: str) -> float:
        """How long its next chain may take."""
        return self._chain_s.get(peer_id, CHAIN_S)

    def offers(self, peer_id: str) -> list[Offer]:
        """What a donor says it has. Raises: PeerRefused, OSError."""
        return parse_offers(self._offers_bytes(peer_id))

    def _offers_bytes(self, peer_id: str) -> bytes:
        """The list may change between its digest and its content: then it is asked for again."""
        options = FetchOptions(MAX_OFFERS_BYTES, pace=_OFFERS_PACE)
        for attempt in range(_ATTEMPTS):
            try:
                return fetch_bytes(self._transport, [peer_id], SNAPSHOTS, options, stop=self._stop)
            except PeerRefused as refused:
                if refused.reason is not Reason.HASH_MISMATCH or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def state(
        self, offer: Offer, peers: Sequence[str], digest: bytes | None, into: Arenas | None
    ) -> Arenas:
        """Raises: PeerRefused, OSError, StorageError."""
        element_bytes = sum(dtype.itemsize for dtype in self._state.values())
        limit = element_bytes * self._elements + (1 << 20)
        started = time.monotonic()
        fetched = fetch(
            self._transport,
            peers,
            f"state/{offer.head.hex()}",
            FetchOptions(limit, expected_digest=digest),
            into=self._folder(offer) if into is None else into,
            stop=self._stop,
            watch=self._watch,
        )
        self._tell("state", fetched, time.monotonic() - started)
        for name, dtype in self._state.items():
            arena = fetched.arenas.get(name)
            if arena is None or arena.dtype != dtype or arena.numel() != self._elements:
                self.reject(offer)
                raise PeerRefused(Reason.MALFORMED, f"the state's {name} is not of this model")
        return fetched.arenas

    def begun(self, offer: Offer) -> int:
        return landed_bytes(self._folder(offer))

    def keeps_something(self) -> bool:
        """Whether any part of a state is in files, for the next start. From any thread."""
        return any(map(landed_bytes, self._folders()))

    def forget(self, but: Collection[Offer] = ()) -> None:
        kept = {self._folder(offer) for offer in but}
        for folder in self._folders():
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def reject(self, offer: Offer) -> None:
        shutil.rmtree(self._folder(offer), ignore_errors=True)

    def _folders(self) -> list[Path]:
        return list(self._downloads.iterdir()) if self._downloads.is_dir() else []

    def _folder(self, offer: Offer) -> Path:
        return self._downloads / offer.head.hex()[:16]

    def result(self, digest: bytes, peers: Sequence[str], pace: Pace | None = None) -> torch.Tensor:
        options = FetchOptions(4 * self._elements + (1 << 20), pace=pace)
        result = torch.zeros(self._elements)
        quiet = replace(self._watch, on_progress=lambda done, total: None)
        started = time.monotonic()
        fetched = fetch_result(
            self._transport, peers, digest, result, options, stop=self._stop, watch=quiet
        )
        self._tell("result", fetched, time.monotonic() - started)
        return result

    def _tell(self, what: str, fetched: Fetched, seconds: float) -> None:
        if self._watch.events is not None:
            self._watch.events.emit(
                "fetched",
                what=what,
                bytes=sum(fetched.given_bytes.values()),
                reused_bytes=fetched.reused_bytes,
                seconds=round(seconds, 3),
                from_peers=dict(fetched.given_bytes),
            )
