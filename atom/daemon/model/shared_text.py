"""A run's text in the form in which peers share it, so that joiners need no copy of their own.

The text is shared as one blob: the tokenizer.json and the tokens. Its digest is in the manifest.
"""

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
"""Size of the tokens up to which a run's text is shared, unless the run file says otherwise."""
TOKENIZER = "tokenizer"
"""Name of the blob's first arena; one arena for each token file follows, in order of names."""
_USUAL_BITS_PER_S = 100e6
"""Assumed speed of a line without a limit in the peer file."""


def with_share(run: RunFile, text: Samples) -> RunFile:
    """Return the founder's run with [data] share filled in: "swarm" or "own-copy"."""
    size = sum(file.tokens.nbytes for file in text.files)
    usual = "swarm" if size <= MOST_SHARED_BYTES else "own-copy"
    return run.changed("data", share=run.data.share or usual)


def content_of(text: Samples) -> Content:
    """Return the blob of a text that is here as a whole: name of the arena → flat tensor."""
    raw = bytearray(text.tokenizer_json)
    tokenizer = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0).byte()
    return {TOKENIZER: tokenizer} | {
        _file_name(number): file.tokens for number, file in enumerate(text.files)
    }


def described(text: Samples) -> SharedText:
    """Return the description of the text for the manifest. Slow: hashes the whole text."""
    files = (
        TextFile(dtype_name(file.tokens.dtype), len(file.tokens), file.digest)
        for file in text.files
    )
    digest, size = state_digest(content_of(text)), len(text.tokenizer_json)
    return SharedText(digest, text.vocabulary_size, size, tuple(files))


def comes_through_the_swarm(run: RunFile, manifest: Manifest, peer: PeerFile) -> bool:
    """Return True if a joiner fetches the text from other peers.

    It does not if the run does not share its text, or the peer file names a copy.
    """
    return manifest.text is not None and not names_a_copy(run.data, peer.data)


def open_store(text: SharedText, folder: Path) -> PieceStore:
    """Open the store of a text that arrives in pieces, and keep the pieces that are there.

    Args:
        text: description of the text in the manifest.
        folder: folder for texts in the state directory.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    return PieceStore(text.digest, shapes_of(text), _place(text, folder))


def shapes_of(text: SharedText) -> list[ArenaManifest]:
    """Return the arenas of the blob, without digests: the tokenizer, then the token files."""
    shapes = [ArenaManifest(TOKENIZER, "uint8", text.tokenizer_bytes, b"")]
    for number, file in enumerate(text.files):
        shapes.append(ArenaManifest(_file_name(number), file.dtype, file.tokens, b""))
    return shapes


def tokenizer_pieces(store: PieceStore) -> list[arenas.Piece]:
    """Return the blob's pieces that contain the tokenizer."""
    return [(0, number) for number in range(store.shapes[0].chunks)]


def _place(text: SharedText, folder: Path) -> Path:
    return folder / text.digest.hex()[:16]


def samples_of(run: RunFile, text: SharedText, store: PieceStore) -> Samples:
    """Return the samples of a shared text, whose pieces may not have arrived yet.

    Args:
        run: the run, pinned.
        text: description of the text in the manifest.
        store: store of the pieces.

    Raises:
        DataError: the text has too few tokens, or the run's sequences are too long.
        MismatchError: manifest and run file name different texts.
    """
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
    """Stand-in for the run's tokenizer before it arrives, with vocabulary size and digest only."""

    def __init__(self, vocabulary_size: int, digest: str) -> None:
        self.vocabulary_size, self.digest = vocabulary_size, digest


def piece_of(needed: Piece) -> arenas.Piece:
    """Return the blob's piece that contains a piece of a token file."""
    return needed.file + 1, needed.number


def validation_pieces(samples: Samples) -> frozenset[arenas.Piece]:
    """Return the blob's pieces that contain the validation data."""
    found = set[Piece]()
    for part in samples.validation.values():
        assert isinstance(part, Windows)
        found |= part.pieces([*range(0, len(part), part.piece_windows), len(part) - 1])
    return frozenset(map(piece_of, found))


def total_bytes(text: SharedText) -> int:
    """Return the bytes that the whole text takes, on the line and on the disk."""
    return sum(shape.byte_count for shape in shapes_of(text))


def what_comes(manifest: Manifest, peer: PeerFile, folder: Path) -> str:
    """Return a line for a joiner's owner about the size of the text and the time to fetch it.

    Args:
        manifest: manifest of a run that shares its text.
        peer: the peer file, whose limit on downloads determines the time.
        folder: folder for texts in the state directory, as for `open_store`.

    Raises:
        StorageError: the disk has no room for the text.
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
