"""`atom info ADDRESS`: what a run trains on, some lines of it, before anybody joins."""

import random
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import typer

from atom.base.errors import AddressError, PeerRefused, StorageError
from atom.base.printable import printable
from atom.base.units import format_bytes
from atom.cli.look.chain_reader import ChainFetcher
from atom.cli.look.onlooker import listed_peer, looked_at
from atom.cli.shell.signals import run_to_the_end
from atom.config.run_file import RunFile
from atom.daemon.model.model_source import agreed_run
from atom.daemon.model.shared_text import TOKENIZER, open_store, shapes_of, tokenizer_pieces
from atom.models.data.corpus import Amount
from atom.models.data.tokenizer import Tokenizer, load_tokenizer
from atom.models.source import DataError
from atom.swarm.records.manifest import SharedText
from atom.swarm.state.arenas import Piece
from atom.swarm.state.fetch import Watch
from atom.swarm.state.piece_feed import fetch_into
from atom.swarm.state.piece_store import PieceStore
from atom.swarm.transport.transport import Transport

MOST_TEXTS, PLACES, TOKENS, CHARACTERS = 3, 3, 120, 300


def show_excerpts(address: str) -> None:
    """Prints them. Raises: AddressError, StorageError."""
    swarm = run_to_the_end(looked_at(address))
    manifest = swarm.manifest
    run, text = agreed_run(manifest), manifest.text
    typer.echo(f"{manifest.run}: {Amount(*manifest.data_amount)}")
    if text is None:
        typer.echo("each peer has a copy of its own: it does not travel through the swarm")
        return
    fetcher = ChainFetcher(manifest, listed_peer(manifest), swarm.entrances)
    try:
        fetcher.know(swarm.leases)
        with tempfile.TemporaryDirectory() as folder:
            store = open_store(text, Path(folder))
            typer.echo(f"{format_bytes(store.total_bytes)} come through the swarm. Some of it:")
            pieces = some_pieces(text)
            fetch_some(fetcher.transport, store, pieces, swarm.alive)
            tokenizer = read_tokenizer(run, store, Path(folder))
            for excerpt in excerpts(store, pieces, tokenizer):
                typer.echo(f"\n  {excerpt}")
    finally:
        fetcher.close()


def some_pieces(text: SharedText) -> list[Piece]:
    """One of each of the first texts."""
    shapes = shapes_of(text)[1 : 1 + MOST_TEXTS]
    return [(arena, random.randrange(each.chunks)) for arena, each in enumerate(shapes, start=1)]


def fetch_some(
    transport: Transport, store: PieceStore, pieces: list[Piece], peers: list[str]
) -> None:
    """These, and the tokenizer. Raises: AddressError, StorageError."""
    wanted = [*tokenizer_pieces(store), *pieces]
    try:
        fetch_into(store, transport, wanted, peers, threading.Event(), Watch())
    except PeerRefused as refused:
        raise AddressError(
            f"no peer gave some of the run's text: {refused}", "try again in a moment"
        ) from refused


def read_tokenizer(run: RunFile, store: PieceStore, folder: Path) -> Tokenizer:
    """Which has come with `fetch_some`; it is written into `folder`. Raises: StorageError."""
    path = folder / "tokenizer.json"
    path.write_bytes(store.arenas[TOKENIZER].numpy().tobytes())
    try:
        return load_tokenizer("bytes" if run.data.tokenizer == "bytes" else path)
    except DataError as problem:
        raise StorageError(problem.message, problem.hint) from problem


def excerpts(store: PieceStore, pieces: list[Piece], tokenizer: Tokenizer) -> Iterator[str]:
    """On one line each, without control characters."""
    for piece in pieces:
        tokens = store.arenas[store.shapes[piece[0]].name]
        first, stop = (bound // tokens.element_size() for bound in store.bounds(piece))
        for _ in range(PLACES):
            at = random.randrange(first, max(stop - TOKENS, first + 1))
            numbers = tokens[at : min(at + TOKENS, stop)].tolist()
            text = tokenizer.decode([~each if each < 0 else each for each in numbers])
            yield printable(" ".join(text.split()))[:CHARACTERS]
