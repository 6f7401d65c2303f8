"""Data from other peers: pages of chains, lists of states, states and results."""

import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
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


class PeerDonors:
    """Data that other peers serve. Each fetch that fails raises PeerRefused or OSError."""

    def __init__(
        self,
        transport: Transport,
        result_bytes: int,
        state_bytes: int,
        downloads: Path,
        watch: Watch,
    ) -> None:
        """Fetch nothing yet.

        Args:
            transport: Connections to other peers.
            result_bytes: Size of one result, without the few bytes that each chunk adds.
            state_bytes: Size of one state.
            downloads: Folder of states that are not complete yet.
            watch: Receives the progress of fetches, and reports of peers that sent wrong data.
        """
        self._transport = transport
        self._max_result_bytes = result_bytes + result_bytes // 32 + (1 << 20)
        self._max_bytes = state_bytes + (1 << 20)
        self._downloads = downloads
        self._watch = watch
        self.stop = threading.Event()
        """Event that stops fetches and replays; set when this peer ends, from any thread."""

    def asking(self, peer_id: str) -> AbstractContextManager[Ask]:
        """Connect to a peer, to ask it for pages of its chain or for its list of states."""
        return asking(self._transport, peer_id, UNCHECKED_PACE, self.stop, self._watch)

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
        wanted = Wanted(f"state/{head.hex()}", peers, digest, self._max_bytes)
        return fetch(self._transport, wanted, self._folder(head), self.stop, self._watch)

    def frozen(self, peers: Sequence[str], digest: bytes, size_bytes: int) -> Arenas:
        """Fetch the frozen parameters into files, as `state` does."""
        wanted = Wanted(FROZEN, peers, digest, size_bytes + (1 << 20))
        return fetch(self._transport, wanted, self._downloads / FROZEN, self.stop, self._watch)

    def result(self, digest: bytes, peers: Sequence[str], pace: Pace | None = None) -> EncodedMean:
        """Fetch a round's mean by its digest.

        Args:
            pace: Slowest acceptable pace; None: any.
        """
        most = self._max_result_bytes
        wanted = Wanted(f"result/{digest.hex()}", peers, digest, most, pace)
        quiet = replace(self._watch, on_progress=lambda done, total: None)
        return EncodedMean.of(fetch(self._transport, wanted, None, self.stop, quiet))

    def keep_only(self, heads: Collection[bytes] = ()) -> None:
        """Delete all downloads except the states at the heads with these digests."""
        kept = {self._folder(head) for head in heads}
        for folder in self._downloads.glob("*"):
            if folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, head: bytes) -> Path:
        return self._downloads / head.hex()[:16]
