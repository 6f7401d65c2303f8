"""Tokens of a run's text, read from the places in [data] and compared with the run's digest."""

import errno
from pathlib import Path

from atom.base.errors import AddressError, ConfigError, MismatchError, StorageError, UserError
from atom.base.files import why_not_written
from atom.config.model_and_data import ANSWERS, TextSource
from atom.config.run_file import RunFile
from atom.config.sources import TextPlace, TextSources
from atom.models.data.conversations import AnswersOnly, target_share
from atom.models.data.corpus import Amount, Corpus, Progress
from atom.models.data.files import stdlib_corpus, text_corpus
from atom.models.data.samples import Cut, Samples, Text, token_samples
from atom.models.data.stored_dataset import StoredDataset
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import Tokenizer, load_tokenizer
from atom.models.hub import newest_revision
from atom.models.source import DataError, DataUnreachable, NoRoomForData
from atom.swarm.records.manifest import Manifest
from atom.swarm.state.arenas import CHUNK_BYTES

TEXT_FIELD = "text"
"""Column of a table that holds the text, unless the run file names another."""
SPLIT = "train"
"""Split of a table that is used, unless the run file names another."""


def pin_table(run: RunFile, sources: TextSources, known: RunFile | None) -> RunFile:
    """Fix the founder's run to one commit of each table on the hub.

    Args:
        run: content of the run file.
        sources: places of the texts and the tokenizer on this machine.
        known: the run as it was founded, if it is continued; None for a new run.

    Returns:
        The run, with a revision for each of these tables.

    Raises:
        ConfigError: the hub does not have a table.
        AddressError: the hub cannot be reached.
    """
    revisions: dict[str, str | None] = {}
    for name, text in run.data.texts.items():
        if text.source != "datasets" or text.revision is not None:
            continue
        table = _stored(text, sources.texts[name], sources.tokenizer)
        before = None if known is None else known.data.texts.get(name)
        try:
            if before is not None:
                revisions[name] = before.revision
            elif not table.folder:
                revisions[name] = newest_revision(table.path, "dataset")
        except DataError as problem:
            raise _named(problem, f"data.{f'sources.{name}.' if name else ''}path") from problem
    return run.model_copy(update={"data": run.data.with_each("revision", revisions)})


def open_text(
    run: RunFile, sources: TextSources, cache: Path, progress: Progress
) -> tuple[RunFile, Samples | None]:
    """Tokenise the run's texts, or map the tokens of an earlier start.

    Args:
        run: the run.
        sources: places of the texts and the tokenizer on this machine.
        cache: folder for the tokens.
        progress: called while a text is tokenised.

    Returns:
        (run with the keys that text and tokenizer determine, samples). Samples are None if the run
        trains on the dataset of its module.

    Raises:
        ConfigError: a text or the tokenizer cannot be used, or is not the run's.
        AddressError: the hub cannot be reached.
        StorageError: the disk is full.
    """
    if run.data.source == "module":
        return run, None
    try:
        coder = load_tokenizer(sources.tokenizer)
        texts, shares = list[Text](), dict[str, float]()
        for name, text in run.data.texts.items():
            corpus, writer = _corpus(text, sources, name), coder
            if text.train_on == ANSWERS:
                writer = AnswersOnly(coder)
            file = cached_tokens(corpus, writer, cache, progress)
            if text.train_on == ANSWERS:
                shares[name] = text.answer_share or target_share(file)
            share = shares.get(name, 1.0) if run.data.learns_answers else None
            texts.append(Text(file, name, run.data.weights[name], share))
        run = run.model_copy(update={"data": run.data.with_each("answer_share", shares)})
        end = _end_token(coder) if run.data.attention is not None else None
        run = run.changed("data", end_token=end)
        cut = Cut(run.data.validation_fraction, run.model.sequence_tokens, CHUNK_BYTES, end)
        samples = token_samples(texts, coder, cut, run.run.seed)
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageError(
            f"cannot write the tokens of the text into {cache}: {why_not_written(problem)}",
            "free some space, or choose another directory with --state DIR",
        ) from problem
    except ValueError as problem:
        raise _named(problem, "the run's text cannot be used") from problem
    return run.pinned(samples.vocabulary_size, samples.tokenizer_digest), samples


def _end_token(coder: Tokenizer) -> int:
    """Return the token that ends a document. Raises: DataError."""
    if len(coder.separator) != 1:
        raise DataError(
            "the tokenizer has no token for the end of a text, by which documents are told apart",
            "leave out [data] attention, or take another tokenizer",
        )
    return coder.separator[0]


def check_copies(run: RunFile, sources: TextSources) -> None:
    """Check a joiner's copies without reading the texts: files exist, the tokenizer is the run's.

    Args:
        run: the run, pinned.
        sources: places of the texts and the tokenizer on this machine.

    Raises:
        ConfigError: a file is missing, or the tokenizer differs.
    """
    try:
        for name, text in run.data.texts.items():
            if text.source == "text":
                text_corpus(sources.texts[name].paths)
        coder = load_tokenizer(sources.tokenizer)
    except ValueError as problem:
        raise _named(problem, "the run's text cannot be used") from problem
    run.pinned(coder.vocabulary_size, coder.digest)


def _named(problem: ValueError, what: str) -> UserError:
    """Return the user error for a problem with a text.

    The kind of error decides whether a service tries again: an unreachable hub may come back.
    """
    hint = problem.hint if isinstance(problem, DataError) else ""
    kind: type[UserError] = ConfigError
    if isinstance(problem, DataUnreachable):
        kind = StorageError if isinstance(problem, NoRoomForData) else AddressError
    otherwise = "name the files under [data] paths, in the run file or in your peer file"
    return kind(f"{what}: {problem}", hint or otherwise)


def _corpus(text: TextSource, sources: TextSources, name: str) -> Corpus:
    """Return the corpus of one text. Raises: DataError."""
    place = sources.texts[name]
    if text.source == "datasets":
        return _stored(text, place, sources.tokenizer).corpus(text.max_bytes)
    if text.source == "python-stdlib":
        return stdlib_corpus(text.max_bytes)
    return text_corpus(place.paths, text.max_bytes)


def _stored(text: TextSource, place: TextPlace, tokenizer: str) -> StoredDataset:
    return StoredDataset(
        path=place.table,
        text_field=text.text_field or TEXT_FIELD,
        split=text.split or SPLIT,
        name=text.name,
        revision=text.revision,
        tokenizer=tokenizer,
        answers=text.train_on == ANSWERS,
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
        f"the training data here differ from the run's: here are {samples.amount}"
        + (", as many, but others" if samples.amount == wanted else f"; the run has {wanted}"),
        "get what the founder has: the same bytes, or rows, in the same order; for python-stdlib "
        "the same build of Python",
    )
