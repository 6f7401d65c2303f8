"""Arrival of a text of 2 GB from one donor: seconds until the first sequences have their pieces.

The donor sends over TLS on loopback, held to 100 Mbit/s by its own limit; tokens of two bytes, all
0; sequences of 2,048 tokens in the order of a run.

    python -m benchmarks.text.run
    python -m benchmarks.text.run --megabytes 100 --mbit 800
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from atom.models.data.sampler import Order, Sampler
from atom.swarm.state.arenas import CHUNK_BYTES, ArenaManifest, Piece, state_digest
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.fetch import Watch
from atom.swarm.state.piece_feed import FeedCallbacks, PieceFeed
from atom.swarm.state.piece_store import PieceStore, text_blob
from atom.swarm.stream.bandwidth import Bandwidth
from atom.swarm.transport.limits import Handlers
from benchmarks.shared.exchange import introduce, opened
from benchmarks.shared.program import parser_of, publish, say, say_row

PIECE_TOKENS, SEQUENCE_TOKENS = CHUNK_BYTES // 2, 2048
PIECE_WINDOWS = (PIECE_TOKENS - 1) // SEQUENCE_TOKENS
STEPS = 8, 64, 512
COLUMNS = {"sequences": "", "pieces": "", "seconds": ".1f", "MB here": ",.0f"}


def main() -> None:
    options = parser_of(__doc__, megabytes=2000, mbit=100.0).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        count = options.megabytes * 10**6 // 2
        rows = measured(Path(folder), count, options.mbit * 1e6)
    publish("text", rows, COLUMNS, megabytes=options.megabytes, mbit=options.mbit)


def measured(folder: Path, count: int, bits_per_s: float) -> list[dict[str, Any]]:
    """Fetch a text of `count` tokens; return a row per number of sequences in `STEPS`."""
    path = folder / "tokens"
    with path.open("wb") as file:
        file.truncate(2 * count)
    tokens = torch.from_file(str(path), shared=True, size=count, dtype=torch.uint16)
    digest = state_digest({"tokens": tokens})
    server = BlobServer({text_blob(digest): {"tokens": tokens}}.get)
    server.manifest(text_blob(digest))  # hashed before the clock runs, as by a founder
    handlers = Handlers(on_blobs=server.serve)
    donor, me = opened(bandwidth=Bandwidth(bits_per_s), handlers=handlers), opened()
    introduce(me, [(donor.peer_id, donor.address)])
    pieces = count // PIECE_TOKENS
    sampler = Sampler((Order(PIECE_WINDOWS * pieces, PIECE_WINDOWS, 1),))
    store = PieceStore(digest, [ArenaManifest("tokens", "uint16", count, b"")], folder / "store")
    ready, rows = threading.Event(), list[dict[str, Any]]()
    callbacks = FeedCallbacks(Watch(), ready.set, attempted, lambda failure: say(str(failure)))
    feed = PieceFeed(me, store, lambda: order(sampler), callbacks)
    began = time.monotonic()
    feed.start()
    feed.know([donor.peer_id])
    for sequences in STEPS:
        needed = {piece_of(sampler, position) for position in range(sequences)}
        while not feed.need(needed):
            ready.wait(1.0)
            ready.clear()
        found = time.monotonic() - began, store.kept_bytes / 1e6
        rows.append(dict(zip(COLUMNS, (sequences, len(needed), *found), strict=True)))
        say_row(rows[-1], COLUMNS)
    for each in (feed, donor, me):
        each.close()
    return rows


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
