"""What others serve to catch up from, how it is fetched, and who claims to have better. The names
are `RunStorage`'s."""

import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from atom.base.clock import Clock
from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swap.state_form import StateArena
from atom.swarm.chain.commit import Head
from atom.swarm.chain.commit_chain import PAGE_BYTES, chain_name
from atom.swarm.records.lease import claims_better, preferred
from atom.swarm.state.arenas import DIGEST_BYTES, named_digest
from atom.swarm.state.blobs import RESULT_ARENA
from atom.swarm.state.fetch import (
    UNCHECKED_PACE,
    Wanted,
    Watch,
    asking,
    fetch,
    refusal_of,
)
from atom.swarm.stream.frames import Pace
from atom.swarm.transport.limits import Backoff
from atom.swarm.transport.transport import Transport
from atom.training.round.events import View
from atom.training.round.faults import FIRST_DOUBT_S, LONGEST_DOUBT_S, in_turn
from atom.training.storage.run_storage import OFFERS

Arenas = Mapping[str, torch.Tensor]
MAX_OFFERS = 64
_ASKED, _ASKED_AT_ONCE = 64, 8
"""Donors that are asked what they offer."""
SETTLED_S = 0.3
"""A claim is looked into once there has been one for so long: the commit may be under way to us."""
AT_ONCE = 2


class PeerDonors:
    """What other peers serve. Every fetch raises PeerRefused or OSError when it fails."""

    def __init__(
        self,
        transport: Transport,
        elements: int,
        state: Mapping[str, StateArena],
        downloads: Path,
        watch: Watch,
    ) -> None:
        """`elements`: of one result. `state`: what this run's state consists of, by name.
        `downloads`: where a state lies until it is whole. `watch`: hears also of lies."""
        self._transport = transport
        self._elements = elements
        self._state = state
        self._downloads = downloads
        self._watch = watch
        self._stop = threading.Event()

    def close(self) -> None:
        """Ends fetches under way, and whatever else is done to have a state. From any thread."""
        self._stop.set()

    @property
    def closed(self) -> bool:
        """Whether this peer ends, and needs no state any more. From any thread."""
        return self._stop.is_set()

    @contextmanager
    def chain(self, peer_id: str) -> Iterator[Callable[[int], bytes]]:
        """A function for pages of that peer's chain: the commits after a round."""
        with asking(self._transport, peer_id, UNCHECKED_PACE, self._stop) as ask:
            yield lambda since: ask(chain_name(since), PAGE_BYTES)

    def dropped(self, peer_id: str, problem: PeerRefused | OSError) -> None:
        """What became of its chain."""
        self._watch.dropped(peer_id, "chain", refusal_of(problem))

    def offered(self, heads: Sequence[Head], peers: Sequence[str]) -> list[Head]:
        """Of these heads, those whose states they offer: first those of which an earlier fetch left
        something here, then the newest. Who does not answer offers nothing.

        Raises: PeerRefused(SUPERSEDED): we end. No answer means nothing then.
        """
        with ThreadPoolExecutor(_ASKED_AT_ONCE, "atom-offers") as pool:
            told = {each for digests in pool.map(self._offers, peers[:_ASKED]) for each in digests}
        if self.closed:
            raise PeerRefused(Reason.SUPERSEDED, "stopped here")
        found = [head for head in heads if head.digest in told]
        return sorted(found, key=lambda head: (self._begun(head), head.round), reverse=True)

    def _offers(self, peer_id: str) -> list[bytes]:
        try:
            with asking(self._transport, peer_id, UNCHECKED_PACE, self._stop) as ask:
                raw = ask(OFFERS, MAX_OFFERS * DIGEST_BYTES)
        except (PeerRefused, OSError):
            return []
        return [raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)]

    def state(self, head: Head, peers: Sequence[str], digest: bytes, into: Arenas | None) -> Arenas:
        """The state at that head, with that digest. `into`: arenas to fill; None: files, in which
        an interrupted fetch goes on. Raises also: StorageError."""
        limit = sum(arena.size_bytes for arena in self._state.values()) + (1 << 20)
        wanted = Wanted(f"state/{head.digest.hex()}", peers, digest, limit)
        place = self._folder(head) if into is None else into
        arenas = self._fetched("state", wanted, place, self._watch)
        for name, form in self._state.items():
            arena = arenas.get(name)
            found = None if arena is None else (arena.dtype, arena.numel())
            if found != (form.dtype, form.elements):
                shutil.rmtree(self._folder(head), ignore_errors=True)
                raise PeerRefused(Reason.MALFORMED, f"the state's {name} is not of this model")
        return arenas

    def result(self, digest: bytes, peers: Sequence[str], pace: Pace | None = None) -> torch.Tensor:
        """`pace`: the least that must come; None: as long as anything comes."""
        limit, named = 4 * self._elements + (1 << 20), named_digest({RESULT_ARENA: digest})
        wanted = Wanted(f"result/{digest.hex()}", peers, named, limit, pace)
        quiet = replace(self._watch, on_progress=lambda done, total: None)
        into = {RESULT_ARENA: torch.zeros(self._elements)}
        return self._fetched("result", wanted, into, quiet)[RESULT_ARENA]

    def _fetched(self, what: str, wanted: Wanted, into: Path | Arenas, watch: Watch) -> Arenas:
        started = time.monotonic()
        fetched = fetch(self._transport, wanted, into, self._stop, watch)
        watch.events.emit(
            "fetched",
            what=what,
            bytes=sum(fetched.given_bytes.values()),
            reused_bytes=fetched.reused_bytes,
            seconds=round(time.monotonic() - started, 3),
            from_peers=dict(fetched.given_bytes),
        )
        return fetched.arenas

    def keeps_something(self) -> bool:
        """Whether any part of a state is in files, for the next start. From any thread."""
        return any(self._folders())

    def keep_only(self, heads: Collection[Head] = ()) -> None:
        """Whatever was downloaded may go, but for the states at these heads."""
        kept = {self._folder(head) for head in heads}
        for folder in self._folders():
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _begun(self, head: Head) -> bool:
        return self._folder(head).exists()

    def _folders(self) -> list[Path]:
        return list(self._downloads.iterdir()) if self._downloads.is_dir() else []

    def _folder(self, head: Head) -> Path:
        return self._downloads / head.digest.hex()[:16]


class ClaimCheck:
    """Proves claims of a better head beside the training: until then, whatever a lease says costs
    nothing. Called by the round's loop alone; asks on threads of its own."""

    def __init__(
        self, prove: Callable[[str], bool], has_proven: Callable[[str], bool], clock: Clock
    ) -> None:
        """As `StateSync`'s methods."""
        self._prove, self._has_proven = prove, has_proven
        self._clock = clock
        self._doubts = Backoff(FIRST_DOUBT_S, LONGEST_DOUBT_S)
        self._asking: dict[str, threading.Thread] = {}
        self._claimed_since = float("inf")

    def unproven(self, view: View, head: Head) -> frozenset[str]:
        """Of the peers whose leases claim a better head than `head`, those that have not shown how
        it came about. Does not wait."""
        now = self._clock.now()
        leases = view.fresh.values()
        claims = [e for e in leases if claims_better(e, head) and e.peer_id not in view.aside]
        self._claimed_since = min(self._claimed_since, now) if claims else float("inf")
        unproven = [e for e in claims if not self._has_proven(e.peer_id)]
        settled = now >= self._claimed_since + SETTLED_S
        if len(unproven) == len(claims) and settled:
            self._ask([lease.peer_id for lease in preferred(claims, head)], view, head, now)
        return frozenset([lease.peer_id for lease in unproven])

    def _ask(self, claimants: Sequence[str], view: View, head: Head, now: float) -> None:
        self._asking = {peer: each for peer, each in self._asking.items() if each.is_alive()}
        waiting = self._asking.keys() | self._doubts.held(now)
        ready = [peer for peer in claimants if peer not in waiting]
        for peer in in_turn(ready, view, head, self._doubts)[: AT_ONCE - len(self._asking)]:
            thread = threading.Thread(target=self._check, args=(peer,), name="claim", daemon=True)
            self._asking[peer] = thread
            thread.start()

    def _check(self, peer: str) -> None:
        try:
            proven = self._prove(peer)
        except (PeerRefused, OSError):
            proven = False  # why, was said where it was found
        if proven:
            self._doubts.forgive(peer)
        else:
            self._doubts.fail(peer, self._clock.now())
