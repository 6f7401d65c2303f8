"""A run's text as peers give it to each other: its tokenizer.json and its tokens, one blob, whose
digest the run's manifest names. A joiner needs neither the text nor the tokenizer."""

import math
import shutil
from pathlib import Path

import torch

from atom.base.errors import MismatchError, StorageError
from atom.base.files import disk_bytes, nearest_folder
from atom.base.units import format_bytes, format_seconds
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.config.sources import names_a_copy
from atom.models.data.samples import Cut, Piece, Samples, Text, Windows, token_samples
from atom.models.data.token_file import TokenFile
from atom.models.data.tokenizer import ByteTokenizer
from atom.swarm.records.manifest import Manifest, SharedText, TextFile
from atom.swarm.state import arenas
from atom.swarm.state.arenas import (
    CHUNK_BYTES,
    ArenaManifest,
    dtype_name,
    state_digest,
)
from atom.swarm.state.blobs import Content
from atom.swarm.state.piece_store import PieceStore

MOST_SHARED_BYTES = 20 * 10**9
"""Of tokens, unless the run file says otherwise."""
TOKENIZER = "tokenizer"
"""The first arena, by the order of names; one for each token file follows."""
_USUAL_BITS_PER_S = 100e6


def with_share(run: RunFile, text: Samples) -> RunFile:
    """The founder's run with the word how its text comes to the others."""
    size = sum(file.tokens.nbytes for file in text.files)
    usual = "swarm" if size <= MOST_SHARED_BYTES else "own-copy"
    return run.changed("data", share=run.data.share or usual)


def content_of(text: Samples) -> Content:
    """What others get of a text that is here as a whole."""
    raw = bytearray(text.tokenizer_json)
    tokenizer = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0).byte()
    return {TOKENIZER: tokenizer} | {
        _file_name(number): file.tokens for number, file in enumerate(text.files)
    }


def described(text: Samples) -> SharedText:
    """For the manifest: hashes all of it."""
    files = (
        TextFile(dtype_name(file.tokens.dtype), len(file.tokens), file.digest)
        for file in text.files
    )
    digest, size = state_digest(content_of(text)), len(text.tokenizer_json)
    return SharedText(digest, text.vocabulary_size, size, tuple(files))


def comes_through_the_swarm(run: RunFile, manifest: Manifest, peer: PeerFile) -> bool:
    """Whether a joiner gets the text from others; it may name a copy of its own."""
    return manifest.text is not None and not names_a_copy(run.data, peer.data)


def open_store(text: SharedText, folder: Path) -> PieceStore:
    """Raises: StorageError."""
    return PieceStore(text.digest, shapes_of(text), _place(text, folder))


def shapes_of(text: SharedText) -> list[ArenaManifest]:
    """The tokenizer, then the token files; without digests."""
    shapes = [ArenaManifest(TOKENIZER, "uint8", text.tokenizer_bytes, b"")]
    for number, file in enumerate(text.files):
        shapes.append(ArenaManifest(_file_name(number), file.dtype, file.tokens, b""))
    return shapes


def tokenizer_pieces(store: PieceStore) -> list[arenas.Piece]:
    return [(0, number) for number in range(store.shapes[0].chunks)]


def _place(text: SharedText, folder: Path) -> Path:
    return folder / text.digest.hex()[:16]


def samples_of(run: RunFile, text: SharedText, store: PieceStore) -> Samples:
    """Of the (pinned) run's text, which may be on its way. Raises: DataError; MismatchError."""
    if len(text.files) != len(run.data.texts):
        raise MismatchError("the run's manifest and its run file name different texts")
    texts = list[Text]()
    for number, (name, weight) in enumerate(run.data.weights.items()):
        file = TokenFile(store.arenas[_file_name(number)], text.files[number].sha256)
        share = run.data.texts[name].answer_share or 1.0 if run.data.learns_answers else None
        texts.append(Text(file, name, weight, share))
    end = run.data.end_token
    cut = Cut(run.data.validation_fraction, run.model.sequence_tokens, CHUNK_BYTES, end)
    coder = _Elsewhere(text.vocabulary, run.data.tokenizer_sha256 or "")
    return token_samples(texts, coder, cut, run.run.seed)


class _Elsewhere(ByteTokenizer):
    """The run's tokenizer, of which enough is known."""

    def __init__(self, vocabulary_size: int, digest: str) -> None:
        self.vocabulary_size, self.digest = vocabulary_size, digest


def piece_of(needed: Piece) -> arenas.Piece:
    """Where a piece of a token file is in the blob."""
    return needed.file + 1, needed.number


def validation_pieces(samples: Samples) -> frozenset[arenas.Piece]:
    found = set[Piece]()
    for part in samples.validation.values():
        assert isinstance(part, Windows)
        found |= part.pieces([*range(0, len(part), part.piece_windows), len(part) - 1])
    return frozenset(map(piece_of, found))


def total_bytes(text: SharedText) -> int:
    """Return the bytes that the whole text takes, on the line and on the disk."""
    return sum(shape.byte_count for shape in shapes_of(text))


def what_comes(manifest: Manifest, peer: PeerFile, folder: Path) -> str:
    """Return what a joiner is told of the text before any of it is fetched.

    Args:
        manifest: of a run whose text comes through the swarm.
        peer: the peer file; its cap on downloads decides how long that takes.
        folder: where texts are kept, as for `open_store`.

    Raises:
        StorageError: the disk has no room for it.
    """
    assert manifest.text is not None
    total, kept = total_bytes(manifest.text), disk_bytes([_place(manifest.text, folder)])
    wanted, free = max(total - kept, 0), shutil.disk_usage(nearest_folder(folder)).free
    if wanted > free:
        raise StorageError(
            f"the run's text takes {format_bytes(wanted)} of disk, {format_bytes(free)} are free "
            f"in {folder}",
            "choose a larger disk: [state] directory in the peer file",
        )
    if not wanted:
        return f"the run's text is in {folder} already"
    line = peer.network.download_bits_per_s or _USUAL_BITS_PER_S
    takes = f"{format_seconds(math.ceil(wanted * 8 / line))} at {line / 1e6:g} Mbit/s"
    return (
        f"the run's text comes through the swarm: {format_bytes(total)}, of which "
        f"{format_bytes(kept)} are here; the rest takes {takes}. It is kept in {folder}. "
        "Training begins with the first pieces"
    )


def _file_name(number: int) -> str:
    return f"tokens-{number:02d}"
