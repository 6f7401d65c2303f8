"""What others serve to catch up from, and how it is fetched. The names are `RunStorage`'s."""

import json
import shutil
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swap.state_form import StateArena
from atom.swarm.chain.commit import Head
from atom.swarm.chain.commit_chain import MAX_CHAIN_BYTES, chain_name
from atom.swarm.state.fetch import (
    UNCHECKED_PACE,
    Fetched,
    FetchOptions,
    Wanted,
    Watch,
    fetch,
    fetch_bytes,
    fetch_result,
)
from atom.swarm.stream.frames import Pace
from atom.swarm.transport.transport import PeerTransport
from atom.training.storage.run_storage import OFFERS

Arenas = Mapping[str, torch.Tensor]
MAX_OFFERS, MAX_OFFERS_BYTES = 64, 16 * 1024
_ASKED, _ASKED_AT_ONCE = 64, 8
"""Donors that are asked what they offer."""
_ATTEMPTS = 3


@dataclass(frozen=True)
class Offer:
    """A state that a donor serves."""

    round: int
    head: bytes


def parse_offers(raw: bytes) -> list[Offer]:
    """A stranger's list of states, at most `MAX_OFFERS`. Raises: PeerRefused(MALFORMED)."""
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
    """What other peers serve. Every fetch raises PeerRefused or OSError when it fails."""

    def __init__(
        self,
        transport: PeerTransport,
        elements: int,
        state: Mapping[str, StateArena],
        downloads: Path,
        watch: Watch,
    ) -> None:
        """`elements`: of one result. `state`: what this run's state consists of, by name.
        `downloads`: where a state lies until it is whole."""
        self._transport = transport
        self._elements = elements
        self._state = state
        self._downloads = downloads
        self._watch = replace(watch, on_lie=lambda donor, reason: self._liars.add(donor))
        self._stop = threading.Event()
        self._liars: set[str] = set()

    def take_liars(self) -> set[str]:
        """Who gave what does not hold since this was last asked: also beside honest donors, where
        it cost a piece and nothing else."""
        taken, self._liars = self._liars, set()
        return taken

    def close(self) -> None:
        """Ends fetches under way, and whatever else is done to have a state. From any thread."""
        self._stop.set()

    @property
    def closed(self) -> bool:
        """Whether this peer ends, and needs no state any more. From any thread."""
        return self._stop.is_set()

    def chain(self, peer_id: str, head: bytes, since: int) -> bytes:
        """The commits after round `since` that lead to the peer's head."""
        options = FetchOptions(MAX_CHAIN_BYTES, pace=UNCHECKED_PACE)
        return fetch_bytes(self._transport, peer_id, chain_name(head, since), options, self._stop)

    def offers_on(self, heads: Sequence[Head], peers: Sequence[str]) -> list[Offer]:
        """States that they offer on the chain with these heads, those first of which an earlier
        fetch left something here, then the newest. Who does not answer offers nothing.

        Raises: PeerRefused(SUPERSEDED): we end. No answer means nothing then.
        """
        with ThreadPoolExecutor(_ASKED_AT_ONCE, "atom-offers") as pool:
            told = {offer for offers in pool.map(self._offers, peers[:_ASKED]) for offer in offers}
        if self.closed:
            raise PeerRefused(Reason.SUPERSEDED, "stopped here")
        found = [o for o in told if o.round < len(heads) and heads[o.round].digest == o.head]
        return sorted(found, key=lambda o: (self._begun(o), o.round), reverse=True)

    def _offers(self, peer_id: str) -> list[Offer]:
        """The list may change between its digest and its content: then it is asked for again."""
        options = FetchOptions(MAX_OFFERS_BYTES, pace=UNCHECKED_PACE)
        for _ in range(_ATTEMPTS):
            try:
                return parse_offers(
                    fetch_bytes(self._transport, peer_id, OFFERS, options, self._stop)
                )
            except PeerRefused as refused:
                if refused.reason is not Reason.HASH_MISMATCH:
                    break
            except OSError:
                break
        return []

    def state(
        self, offer: Offer, peers: Sequence[str], digest: bytes, into: Arenas | None
    ) -> Arenas:
        """The state with that digest. `into`: arenas to fill; None: files, in which an interrupted
        fetch goes on. Raises also: StorageError."""
        limit = sum(arena.size_bytes for arena in self._state.values()) + (1 << 20)
        started = time.monotonic()
        fetched = fetch(
            self._transport,
            Wanted(f"state/{offer.head.hex()}", peers, digest),
            FetchOptions(limit),
            into=self._folder(offer) if into is None else into,
            stop=self._stop,
            watch=self._watch,
        )
        self._tell("state", fetched, time.monotonic() - started)
        for name, wanted in self._state.items():
            arena = fetched.arenas.get(name)
            found = None if arena is None else (arena.dtype, arena.numel())
            if found != (wanted.dtype, wanted.elements):
                self.forget([offer])
                raise PeerRefused(Reason.MALFORMED, f"the state's {name} is not of this model")
        return fetched.arenas

    def result(self, digest: bytes, peers: Sequence[str], pace: Pace | None = None) -> torch.Tensor:
        """`pace`: the least that must come; None: as long as anything comes."""
        options = FetchOptions(4 * self._elements + (1 << 20), pace=pace)
        result = torch.zeros(self._elements)
        quiet = replace(self._watch, on_progress=lambda done, total: None)
        started = time.monotonic()
        fetched = fetch_result(
            self._transport, peers, digest, result, options, stop=self._stop, watch=quiet
        )
        self._tell("result", fetched, time.monotonic() - started)
        return result

    def keeps_something(self) -> bool:
        """Whether any part of a state is in files, for the next start. From any thread."""
        return any(self._folders())

    def forget(self, offers: Collection[Offer]) -> None:
        """What was downloaded of these states is of no use."""
        for offer in offers:
            shutil.rmtree(self._folder(offer), ignore_errors=True)

    def keep_only(self, offers: Collection[Offer] = ()) -> None:
        """Whatever was downloaded may go, but for these states."""
        kept = {self._folder(offer) for offer in offers}
        for folder in self._folders():
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _begun(self, offer: Offer) -> bool:
        return self._folder(offer).exists()

    def _folders(self) -> list[Path]:
        return list(self._downloads.iterdir()) if self._downloads.is_dir() else []

    def _folder(self, offer: Offer) -> Path:
        return self._downloads / offer.head.hex()[:16]

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
