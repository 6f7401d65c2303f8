"""From a run file's [data] to the tokens of its text; and whether they are those of the run."""

import errno
from pathlib import Path

from atom.base.errors import AddressError, ConfigError, MismatchError, StorageError, UserError
from atom.base.files import why_not_written
from atom.config.model_and_data import Data
from atom.config.run_file import RunFile
from atom.config.sources import TextSources
from atom.models.data.corpus import Amount, Corpus, Progress
from atom.models.data.files import stdlib_corpus, text_corpus
from atom.models.data.samples import Cut, Samples, text_samples
from atom.models.data.stored_dataset import StoredDataset
from atom.models.data.tokenizer import load_tokenizer
from atom.models.hub import newest_revision
from atom.models.source import DataError, DataUnreachable, NoRoomForData
from atom.swarm.records.manifest import Manifest
from atom.swarm.state.arenas import CHUNK_BYTES

TEXT_FIELD = "text"
SPLIT = "train"
"""Where the text is, if the run file does not say."""


def pin_table(run: RunFile, sources: TextSources, known: RunFile | None) -> RunFile:
    """The founder's run at one commit of its table, if it is one of the hub.

    `known`: the run that is taken up again. Raises: ConfigError; AddressError if the hub
    cannot be asked.
    """
    if run.data.source != "datasets" or run.data.revision is not None:
        return run
    if known is not None:
        return run.changed("data", revision=known.data.revision)
    table = _stored(run.data, sources)
    if table.folder:
        return run
    try:
        return run.changed("data", revision=newest_revision(table.path, "dataset"))
    except DataError as problem:
        raise _named(problem, "data.path") from problem


def open_text(
    run: RunFile, sources: TextSources, cache: Path, progress: Progress
) -> tuple[RunFile, Samples | None]:
    """Tokenises (once) and maps the run's text; None for a run whose module brings a dataset.
    Beside it the run with what its tokenizer decides.

    Raises: ConfigError; AddressError for a hub that cannot be reached; StorageError on a full disk.
    """
    if run.data.source == "module":
        return run, None
    try:
        corpus = _corpus(run.data, sources)
        text = text_samples(
            corpus,
            sources.tokenizer,
            Cut(run.data.validation_fraction, run.model.sequence_tokens, CHUNK_BYTES),
            seed=run.run.seed,
            cache_folder=cache,
            on_progress=progress,
        )
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageError(
            f"cannot write the tokens of the text into {cache}: {why_not_written(problem)}",
            "free some space, or choose another directory with --state DIR",
        ) from problem
    except ValueError as problem:
        raise _named(problem, "the run's text cannot be used") from problem
    return run.pinned(text.vocabulary_size, text.tokenizer_digest), text


def check_copies(run: RunFile, sources: TextSources) -> None:
    """What can be told of a joiner's copies without reading the text: files are there, and the
    tokenizer is the run's. Raises: ConfigError."""
    try:
        if run.data.source == "text":
            text_corpus(sources.paths)
        coder = load_tokenizer(sources.tokenizer)
    except ValueError as problem:
        raise _named(problem, "the run's text cannot be used") from problem
    run.pinned(coder.vocabulary_size, coder.digest)


def _named(problem: ValueError, what: str) -> UserError:
    """What cannot be reached now may be later: a service starts again after that."""
    hint = problem.hint if isinstance(problem, DataError) else ""
    kind: type[UserError] = ConfigError
    if isinstance(problem, DataUnreachable):
        kind = StorageError if isinstance(problem, NoRoomForData) else AddressError
    otherwise = "name the files under [data] paths, in the run file or in your peer file"
    return kind(f"{what}: {problem}", hint or otherwise)


def _corpus(data: Data, sources: TextSources) -> Corpus:
    """Raises: DataError."""
    if data.source == "datasets":
        return _stored(data, sources).corpus(data.max_bytes)
    if data.source == "python-stdlib":
        return stdlib_corpus(data.max_bytes)
    return text_corpus(sources.paths, data.max_bytes)


def _stored(data: Data, sources: TextSources) -> StoredDataset:
    return StoredDataset(
        path=sources.table,
        text_field=data.text_field or TEXT_FIELD,
        split=data.split or SPLIT,
        name=data.name,
        revision=data.revision,
    )


def check_data(samples: Samples, data: Data, manifest: Manifest) -> None:
    """A manifest without a digest of data lets peers have different ones.

    Raises: MismatchError with what was found here, and how much the run has.
    """
    if not manifest.data_digest or samples.digest == manifest.data_digest:
        return
    raise MismatchError(
        f"the training data here differ from the run's: here are {samples.amount}"
        + _what_there_is(samples, run_amount(manifest)),
        _what_is_wanted(data),
    )


def run_amount(manifest: Manifest) -> Amount | None:
    """How much the run trains on; None: its founder's version did not say."""
    return None if manifest.data_amount is None else Amount(*manifest.data_amount)


def _what_there_is(samples: Samples, wanted: Amount | None) -> str:
    if wanted is None:
        return ""
    return ", as many, but others" if samples.amount == wanted else f"; the run has {wanted}"


def _what_is_wanted(data: Data) -> str:
    match data.source:
        case "text":
            named = ", ".join(data.paths)
            return f"get what the founder named {named}: the same bytes in the same order"
        case "python-stdlib":
            return (
                "take the founder's build of Python, whose own source is the text: another build "
                "of the same version may differ"
            )
        case "datasets":
            return f"get the founder's table {data.path}, with the same rows in the same order"
        case "module":
            return "the dataset of the owner's module has to be the same on every machine"
