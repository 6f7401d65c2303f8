"""A text of 2 GB comes through the swarm: when the pieces of the first sequences are here.

    python benchmarks/text.py

One donor on loopback, over TLS, held to 100 Mbit/s by its own limit; tokens of two bytes, all of
them 0; sequences of 2,048 tokens in the order of a run.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from atom.base.events import EventFan
from atom.models.data.sampler import Order, Sampler
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import CHUNK_BYTES, ArenaManifest, Piece, state_digest
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.fetch import Watch
from atom.swarm.state.piece_feed import FeedCallbacks, PieceFeed
from atom.swarm.state.piece_store import PieceStore, text_blob
from atom.swarm.stream.bandwidth import Bandwidth
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.limits import Handlers
from atom.swarm.transport.transport import Transport

PIECE_TOKENS, SEQUENCE_TOKENS = CHUNK_BYTES // 2, 2048
PIECE_WINDOWS = (PIECE_TOKENS - 1) // SEQUENCE_TOKENS
STEPS = 8, 64, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--mbit", type=float, default=100.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        count = asked.megabytes * 10**6 // 2
        measure(Path(folder), count, asked.mbit * 1e6)


def measure(folder: Path, count: int, bits_per_s: float) -> None:
    path = folder / "tokens"
    with path.open("wb") as file:
        file.truncate(2 * count)
    tokens = torch.from_file(str(path), shared=True, size=count, dtype=torch.uint16)
    digest = state_digest({"tokens": tokens})
    line = Bandwidth(bits_per_s)
    server = BlobServer({text_blob(digest): {"tokens": tokens}}.get)
    server.manifest(text_blob(digest))  # hashed before anybody asks, as by a founder who is there
    donor, me = peer(line, server), peer(Bandwidth(), None)
    me.set_addresses(donor.peer_id, ["{}:{}".format(*donor.address)])
    pieces = count // PIECE_TOKENS
    sampler = Sampler((Order(PIECE_WINDOWS * pieces, PIECE_WINDOWS, 1),))
    store = PieceStore(digest, [ArenaManifest("tokens", "uint16", count, b"")], folder / "store")
    ready = threading.Event()
    callbacks = FeedCallbacks(
        Watch(), ready.set, attempted, lambda failure: sys.stderr.write(f"{failure}\n")
    )
    feed = PieceFeed(me, store, lambda: order(sampler), callbacks)
    began = time.monotonic()
    feed.start()
    feed.know([donor.peer_id])
    for sequences in STEPS:
        needed = {piece_of(sampler, position) for position in range(sequences)}
        while not feed.need(needed):
            ready.wait(1.0)
            ready.clear()
        took, here = time.monotonic() - began, store.kept_bytes / 1e6
        told_of = (
            f"{sequences} sequences: {len(needed)} pieces, {took:.1f} s, {here:,.0f} MB here\n"
        )
        sys.stdout.write(told_of)
    for each in (feed, donor, me):
        each.close()


def peer(bandwidth: Bandwidth, server: BlobServer | None) -> Transport:
    handlers = Handlers(on_blobs=None if server is None else server.serve)
    local, place = Local(Identity.create(), bytes(32), bytes(16)), ("127.0.0.1", 0)
    transport = Transport(local, place, EventFan(), bandwidth=bandwidth, handlers=handlers)
    transport.start()
    return transport


def order(sampler: Sampler) -> Iterator[Piece]:
    return (piece for piece in sampler.pieces_from(0))


def piece_of(sampler: Sampler, position: int) -> Piece:
    text, window = sampler.window_at(position)
    return text, window // PIECE_WINDOWS


def attempted(write: Callable[[], None]) -> bool:
    write()
    return True


if __name__ == "__main__":
    main()
