"""What others serve to catch up from, and how it is fetched. The names are `RunStorage`'s."""

import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch

from atom.swarm.chain.commit import Head
from atom.swarm.chain.commit_chain import PAGE_BYTES, Ask
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.state.arenas import DIGEST_BYTES
from atom.swarm.state.fetch import UNCHECKED_PACE, Wanted, Watch, asking, fetch
from atom.swarm.stream.frames import Pace
from atom.swarm.transport.transport import Transport
from atom.training.storage.run_storage import OFFERS

Arenas = Mapping[str, torch.Tensor]


class PeerDonors:
    """What other peers serve. Every fetch raises PeerRefused or OSError when it fails."""

    def __init__(
        self,
        transport: Transport,
        result_bytes: int,
        state_bytes: int,
        downloads: Path,
        watch: Watch,
    ) -> None:
        """`result_bytes`: what one result takes, but for a few per chunk. `downloads`: where a
        state of `state_bytes` lies until it is whole. `watch`: hears also of lies."""
        self._transport = transport
        self._max_result_bytes = result_bytes + result_bytes // 32 + (1 << 20)
        self._max_bytes = state_bytes + (1 << 20)
        self._downloads = downloads
        self._watch = watch
        self.stop = threading.Event()
        """Set when this peer ends: fetches under way end, and whatever else is done to have a
        state. From any thread."""

    def asking(self, peer_id: str) -> AbstractContextManager[Ask]:
        """For a page of that peer's chain, or its list of states."""
        return asking(self._transport, peer_id, UNCHECKED_PACE, self.stop, self._watch)

    def offered(self, heads: Sequence[Head], peer_id: str) -> list[Head]:
        """Of these heads, those whose states that peer offers: first those of which an earlier
        fetch left something here, then the newest."""
        with self.asking(peer_id) as ask:
            raw = ask(OFFERS, PAGE_BYTES)
        told = {raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)}
        found = [head for head in heads if head.digest in told]
        return sorted(
            found, key=lambda head: (self._folder(head).exists(), head.round), reverse=True
        )

    def state(self, head: Head, peers: Sequence[str], digest: bytes) -> Arenas:
        """The state at that head, with that digest, in files: there an interrupted fetch goes on.
        Raises also: StorageError."""
        wanted = Wanted(f"state/{head.digest.hex()}", peers, digest, self._max_bytes)
        return fetch(self._transport, wanted, self._folder(head), self.stop, self._watch)

    def result(self, digest: bytes, peers: Sequence[str], pace: Pace | None = None) -> EncodedMean:
        """`pace`: the least that must come; None: as long as anything comes."""
        most = self._max_result_bytes
        wanted = Wanted(f"result/{digest.hex()}", peers, digest, most, pace)
        quiet = replace(self._watch, on_progress=lambda done, total: None)
        return EncodedMean.of(fetch(self._transport, wanted, None, self.stop, quiet))

    def keep_only(self, heads: Collection[Head] = ()) -> None:
        """Whatever was downloaded may go, but for the states at these heads."""
        kept = {self._folder(head) for head in heads}
        for folder in self._downloads.glob("*"):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, head: Head) -> Path:
        return self._downloads / head.digest.hex()[:16]
