"""Texts of a run as tokens: read on this machine, or shared by peers so that joiners need no copy.

A shared text is one blob: the tokenizer.json and the tokens. Its digest is in the manifest.
"""

import errno
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from atom.base.errors import ConfigError, MismatchError, StorageError
from atom.base.files import disk_bytes, nearest_folder, why_not_written
from atom.base.units import format_bytes
from atom.config.model_and_data import ANSWERS, Data, TextSource
from atom.config.peer_file import LocalSource, PeerFile
from atom.config.run_file import PinnedRun, RunFile
from atom.config.sources import TextSources, names_a_copy
from atom.models.data.account import LOST_TEXT
from atom.models.data.conversations import RowTokenizer
from atom.models.data.corpus import Amount, Corpus, Progress, stdlib_corpus, text_corpus
from atom.models.data.rows import TEXT_FIELD, RowText
from atom.models.data.samples import Cut, Piece, Samples, Text, Windows, own_samples, token_samples
from atom.models.data.stored_dataset import DEFAULT_SPLIT, StoredDataset
from atom.models.data.token_file import TokenFile, cached_tokens
from atom.models.data.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer, load_tokenizer
from atom.models.hub import newest_revision
from atom.models.module_source import ModuleSource
from atom.models.partly_trained import PartlyTrained
from atom.models.source import Batch, ModelSource
from atom.swarm.records.manifest import Manifest, SharedText, TextFile
from atom.swarm.state import arenas
from atom.swarm.state.arenas import CHUNK_BYTES, ArenaManifest, dtype_name, state_digest
from atom.swarm.state.blobs import Content
from atom.swarm.state.piece_store import PieceStore

TOKENIZER = "tokenizer"
"""Name of the blob's first arena; one arena for each token file follows, in order of names."""


@dataclass(frozen=True)
class Texts:
    """All texts of a run as tokens, and the tokenizer that made the tokens."""

    tokens: tuple[Text, ...]
    """Texts to train on before those for validation only, as in `Data.texts`."""
    tokenizer: Tokenizer
    store: PieceStore | None = None
    """Store in which the texts arrive from other peers; None: the texts are here as a whole."""


# ---- texts on this machine


def pinned_tables(data: Data, sources: TextSources, kept: PinnedRun | None) -> Data:
    """Return [data] with a commit of each table on the hub.

    Raises:
        ConfigError: the hub does not have a table.
        AddressError: the hub cannot be reached.
    """
    revisions: dict[str, str | None] = {}
    for name, text in data.texts.items():
        if text.source != "datasets" or text.revision is not None:
            continue
        if kept is not None and name in kept.data.texts:
            revisions[name] = kept.data.texts[name].revision
            continue
        table = _stored(text, sources.texts[name], sources.tokenizer)
        if not table.folder:
            revisions[name] = newest_revision(table.path, "dataset")
    return data.with_each("revision", revisions)


def read_texts(run: RunFile, sources: TextSources, cache: Path, progress: Progress) -> Texts:
    """Tokenise the run's texts, or map the tokens of an earlier start.

    Args:
        run: the run, whose tables on the hub have a revision.
        sources: places of the texts and the tokenizer on this machine.
        cache: folder for the tokens.
        progress: called while a text is tokenised.

    Raises:
        ConfigError: a text or the tokenizer cannot be used, or is not the run's.
        AddressError: the hub cannot be reached.
        StorageError: the disk is full.
    """
    tokens = list[Text]()
    try:
        coder = _tokenizer_of(run, sources)
        for name, text in run.data.texts.items():
            corpus, answers = _corpus(text, sources, name), text.train_on == ANSWERS
            writer: Tokenizer = coder
            if text.source == "datasets" and isinstance(coder, JsonTokenizer):
                writer = RowTokenizer(coder, answers)
            lost_text = LOST_TEXT if run.data.lost_text is None else run.data.lost_text
            file = cached_tokens(corpus, writer, cache, progress, lost_text)
            share = 1.0 if run.data.learns_answers else None
            if answers:
                share = text.answer_share or file.target_share()
            tokens.append(Text(file, name, run.data.weights[name], share))
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageError(
            f"cannot write the tokens of the text into {cache}: {why_not_written(problem)}",
            "free some space, or choose another directory with --state DIR",
        ) from problem
    return Texts(tuple(tokens), coder)


def check_copies(run: PinnedRun, sources: TextSources) -> None:
    """Check a joiner's copies without reading the texts: files exist, the tokenizer is the run's.

    Args:
        run: the run.
        sources: places of the texts and the tokenizer on this machine.

    Raises:
        ConfigError: a file is missing, or the tokenizer differs.
    """
    for name, text in run.data.texts.items():
        if text.source == "text":
            _corpus(text, sources, name)
    _tokenizer_of(run, sources)


def _tokenizer_of(run: RunFile, sources: TextSources) -> Tokenizer:
    """Load the tokenizer, and check that the run can be trained with it. Raises: ConfigError."""
    coder = load_tokenizer(sources.tokenizer)
    if run.data.tokenizer_sha256 not in (None, coder.digest):
        raise ConfigError(
            "data.tokenizer: this is another tokenizer than the run's",
            "get the folder of the tokenizer.json that the run's founder used: the settings beside "
            "it belong to it",
        )
    return coder


def _corpus(text: TextSource, sources: TextSources, name: str) -> Corpus:
    """Return the corpus of one text. Raises: ConfigError."""
    place = sources.texts[name]
    if text.source == "datasets":
        return _stored(text, place, sources.tokenizer).corpus(text.max_bytes)
    if text.source == "python-stdlib":
        return stdlib_corpus(text.max_bytes)
    return text_corpus(place.paths or (), text.max_bytes, _row_text(text, sources.tokenizer))


def _stored(text: TextSource, place: LocalSource, tokenizer: str) -> StoredDataset:
    return StoredDataset(
        path=place.path or "",
        rows=_row_text(text, tokenizer),
        split=text.split or DEFAULT_SPLIT,
        name=text.name,
        revision=text.revision,
    )


def _row_text(text: TextSource, tokenizer: str) -> RowText:
    return RowText(
        text_field=text.text_field or TEXT_FIELD,
        tokenizer=tokenizer,
        answers=text.train_on == ANSWERS,
        skips_bad_rows=text.bad_rows == "skip",
        encoding=text.encoding,
        converses=text.source == "datasets",
    )


def open_samples(run: PinnedRun, source: ModelSource, texts: Texts | None) -> Samples:
    """Return the run's samples, from its texts or from the dataset of its module.

    Args:
        run: the run.
        source: builds the model.
        texts: the run's texts; None: use the dataset of the module.

    Raises:
        ConfigError: the dataset cannot be used, or a text has too few tokens or a token beyond the
            model's.
    """
    fraction = run.data.validation_fraction
    if texts is not None:
        known = source.vocabulary_size or texts.tokenizer.vocabulary_size
        # Texts of other peers have not arrived yet: their tokens are checked as they are used.
        if texts.store is None and known < texts.tokenizer.vocabulary_size:
            for text in texts.tokens:
                _require_known(text.file.largest(), known)

        def to_batch(batch: Batch) -> Batch:
            _require_known(int(batch["tokens"].max()), known)
            return source.text_batch(batch)

        cut = Cut(fraction, run.model.sequence_tokens, CHUNK_BYTES, run.data.end_token)
        samples = token_samples(texts.tokens, texts.tokenizer, cut, run.run.seed)
        return replace(samples, to_batch=to_batch)
    source = source.whole if isinstance(source, PartlyTrained) else source
    assert isinstance(source, ModuleSource)
    return own_samples(source.dataset, source.example, fraction, run.run.seed)


def _require_known(token: int, known: int) -> None:
    """Raise ConfigError if a token of the text is beyond the model's vocabulary."""
    if token >= known:
        raise ConfigError(
            f"the text has token {token}, but the vocabulary of the model ends at {known - 1}",
            "use the model's own tokenizer.json, or raise the model's vocabulary size",
        )


def check_data(samples: Samples, manifest: Manifest) -> None:
    """Raise unless this peer's data equal the run's.

    A manifest without a digest of the data allows different data on each peer.

    Args:
        samples: samples of this peer.
        manifest: the run's manifest.

    Raises:
        MismatchError: the data differ; the message names both amounts.
    """
    if not manifest.data_digest or samples.digest == manifest.data_digest:
        return
    wanted = Amount(*manifest.data_amount)
    raise MismatchError(
        f"the training data on this machine differ from the run's: they are {samples.amount}"
        + (", as many, but different" if samples.amount == wanted else f"; the run has {wanted}"),
        "get the founder's data: the same bytes, or rows, in the same order; for python-stdlib "
        "the same build of Python",
    )


# ---- texts that peers share


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
    content, size = content_of(text), len(text.tokenizer_json)
    return SharedText(state_digest(content), text.vocabulary_size, size, tuple(files))


def comes_through_the_swarm(run: PinnedRun, manifest: Manifest, peer: PeerFile) -> bool:
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


def shared_texts(run: PinnedRun, text: SharedText, store: PieceStore) -> Texts:
    """Return the texts in a store, whose pieces may not have arrived yet.

    Args:
        run: the run.
        text: description of the text in the manifest.
        store: store of the pieces.

    Raises:
        MismatchError: manifest and run file name different texts.
    """
    if len(text.files) != len(run.data.texts):
        raise MismatchError("the run's manifest and its run file name different texts")
    tokens = list[Text]()
    for number, (name, weight) in enumerate(run.data.weights.items()):
        file = TokenFile(store.arenas[_file_name(number)], text.files[number].sha256)
        share = run.data.texts[name].answer_share or 1.0 if run.data.learns_answers else None
        tokens.append(Text(file, name, weight, share))
    coder = _Elsewhere(text.vocabulary, run.data.tokenizer_sha256 or "")
    return Texts(tuple(tokens), coder, store)


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


def total_bytes(text: SharedText | None) -> int:
    """Return the bytes that the whole text takes, on the line and on the disk; 0 without a text."""
    return 0 if text is None else sum(shape.byte_count for shape in shapes_of(text))


def what_comes(manifest: Manifest, folder: Path) -> str:
    """Return a line for a joiner's owner about the size of the text that is fetched.

    Args:
        manifest: manifest of a run that shares its text.
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
    return (
        f"the run's text is fetched from the swarm: {format_bytes(total)}, of which "
        f"{format_bytes(kept)} are in {folder}. Training begins with the first pieces"
    )


def _file_name(number: int) -> str:
    return f"tokens-{number:02d}"
