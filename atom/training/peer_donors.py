"""Data from other peers: pages of chains, lists of states, states and results."""

import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from atom.swap.host_store import FROZEN
from atom.swarm.chain.commit import Head
from atom.swarm.chain.commit_chain import PAGE_BYTES, Ask
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.state.arenas import DIGEST_BYTES
from atom.swarm.state.fetch import UNCHECKED_PACE, Wanted, Watch, asking, fetch
from atom.swarm.stream.frames import Pace
from atom.swarm.transport.transport import Transport
from atom.training.storage.run_storage import OFFERS

Arenas = Mapping[str, torch.Tensor]


@dataclass(eq=False)
class PeerDonors:
    """Data that other peers serve. Each fetch that fails raises PeerRefused or OSError."""

    transport: Transport
    result_bytes: int
    """Size of one result, without the few bytes that each chunk adds."""
    state_bytes: int
    """Size of one state."""
    downloads: Path
    """Folder of states that are not complete yet."""
    watch: Watch
    """Receiver of the progress of fetches, and of reports about peers that sent wrong data."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Event that stops fetches and replays; set when this peer ends, from any thread."""

    def asking(self, peer_id: str) -> AbstractContextManager[Ask]:
        """Connect to a peer, to ask it for pages of its chain or for its list of states."""
        return asking(self.transport, peer_id, UNCHECKED_PACE, self.stop, self.watch)

    def offered(self, heads: Sequence[Head], peer_id: str) -> list[Head]:
        """Return the heads whose states the peer offers, newest first.

        Heads with a partial download on this disk come before all other heads.

        Args:
            heads: Heads to look for.
            peer_id: Peer to ask.
        """
        with self.asking(peer_id) as ask:
            raw = ask(OFFERS, PAGE_BYTES)
        told = {raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)}
        found = [head for head in heads if head.digest in told]
        return sorted(
            found, key=lambda head: (self._folder(head.digest).exists(), head.round), reverse=True
        )

    def state(self, head: bytes, peers: Sequence[str], digest: bytes) -> Arenas:
        """Fetch the state at a head into files, so an interrupted fetch can be continued.

        Args:
            head: Digest of the head.
            peers: Peers to ask.
            digest: Digest of the whole state.

        Raises:
            PeerRefused: No peer serves it.
            OSError: The connection failed.
            StorageError: The disk is full or gone.
        """
        wanted = Wanted(f"state/{head.hex()}", peers, digest, self.state_bytes + (1 << 20))
        return fetch(self.transport, wanted, self._folder(head), self.stop, self.watch)

    def frozen(self, peers: Sequence[str], digest: bytes, size_bytes: int) -> Arenas:
        """Fetch the frozen parameters into files, as `state` does."""
        wanted = Wanted(FROZEN, peers, digest, size_bytes + (1 << 20))
        return fetch(self.transport, wanted, self.downloads / FROZEN, self.stop, self.watch)

    def result(self, digest: bytes, peers: Sequence[str], pace: Pace | None = None) -> EncodedMean:
        """Fetch a round's mean by its digest.

        Args:
            pace: Slowest acceptable pace; None: any.
        """
        most = self.result_bytes + self.result_bytes // 32 + (1 << 20)
        wanted = Wanted(f"result/{digest.hex()}", peers, digest, most, pace)
        quiet = replace(self.watch, on_progress=lambda done, total: None)
        return EncodedMean.of(fetch(self.transport, wanted, None, self.stop, quiet))

    def keep_only(self, heads: Collection[bytes] = ()) -> None:
        """Delete all downloads except the states at the heads with these digests."""
        kept = {self._folder(head) for head in heads}
        for folder in self.downloads.glob("*"):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, head: bytes) -> Path:
        return self.downloads / head.hex()[:16]
