"""Sources and samples of a run: from a run file's [model] to the object that builds the model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from atom.base.errors import AddressError, ConfigError, MismatchError
from atom.base.usable_memory import bounded_memory
from atom.config.load import run_from_text
from atom.config.places import model_place
from atom.config.run_file import RunFile
from atom.models.data.samples import Samples, own_samples
from atom.models.gpt3 import GPT3Config
from atom.models.gpt3_source import GPT3Source
from atom.models.hub import fetch_config, newest_revision
from atom.models.huggingface import HuggingFaceSource
from atom.models.huggingface_config import MAX_CONFIG_BYTES, canonical_config, read_config
from atom.models.module_source import ModuleSource
from atom.models.own_code import OwnCode, find_code, read_code
from atom.models.partly_trained import Adapters, PartlyTrained
from atom.models.source import DataUnreachable, ModelSource, SourceError
from atom.swarm.records.manifest import Manifest

_PINNED = {
    "family": "vocabulary_size",
    "huggingface": "huggingface_config",
    "module": "module_sha256",
}
"""Kind of a model's source → key in [model] that is filled in when the run is founded."""


@contextmanager
def source_errors(run: RunFile) -> Iterator[None]:
    """Turn a SourceError into a user error that names the run file's key of the model.

    Each command uses this context for everything that it does with the run's model.

    Raises:
        AddressError: the hub cannot be reached.
        ConfigError: the model cannot be built for another reason.
    """
    try:
        yield
    except SourceError as problem:
        kind = AddressError if isinstance(problem, DataUnreachable) else ConfigError
        raise kind(f"model.{run.model.source}: {problem.message}", problem.hint) from problem


def pin_source(
    run: RunFile, folder: Path, weights_given: bool, kept: RunFile | None = None
) -> tuple[RunFile, OwnCode | None]:
    """Fix the founder's run to one model: fill in its config.json or the digest of its code.

    Args:
        run: content of the run file.
        folder: folder of the run file, to which paths are relative.
        weights_given: True if the run begins from weights given with `--from`.
        kept: the run as it was founded, if it is continued; None for a new run.

    Returns:
        (pinned run, own code of the run or None).

    Raises:
        SourceError: the config or the code cannot be read.
        ConfigError: the run file contradicts the given weights.
    """
    code = config = revision = None
    if run.model.huggingface is not None:
        config, revision = _described(run, folder, kept)
    elif run.model.module is not None:
        code = find_code(run.model.module, folder)
    digest = None if code is None else code.sha256
    return run.with_source(
        config=config, revision=revision, code=digest, weights_given=weights_given
    ), code


def _described(run: RunFile, folder: Path, kept: RunFile | None) -> tuple[str, str | None]:
    """Return the model's canonical config, and its commit on the hub; None for a local file."""
    assert run.model.huggingface is not None
    place = model_place(run.model.huggingface, folder)
    if Path(place).is_absolute():
        return canonical_config(config_text(Path(place))), None
    if kept is not None and kept.model.huggingface == place:
        assert kept.model.huggingface_config is not None, "pinned when it was founded"
        return kept.model.huggingface_config, kept.model.revision
    revision = run.model.revision or newest_revision(place, "model")
    return canonical_config(config_text(fetch_config(place, revision))), revision


def agreed_run(manifest: Manifest) -> RunFile:
    """Return the pinned run of a (verified) manifest.

    Raises:
        ConfigError: its run file is not valid.
        MismatchError: the run has another name, or a key that founders fill in is missing.
    """
    run = run_from_text(manifest.run_file)
    if run.run.name != manifest.run:
        raise MismatchError(f"the manifest of {manifest.run!r} holds the run {run.run.name!r}")
    pinned = _PINNED[run.model.source]
    if getattr(run.model, pinned) is None:
        raise MismatchError(f"the manifest of {manifest.run!r} holds no {pinned}")
    if run.model.weights == "hub" and run.model.revision is None:
        raise MismatchError(f"the manifest of {manifest.run!r} holds no revision of its weights")
    if run.data.attention is not None and run.data.end_token is None:
        raise MismatchError(f"the manifest of {manifest.run!r} does not say what ends a document")
    return run


def kept_code(run: RunFile, path: Path) -> OwnCode | None:
    """Return the file at `path` if it is the pinned run's own code, else None."""
    assert run.model.module is not None
    try:
        code = read_code(run.model.module, path)
    except SourceError:
        return None
    return code if code.sha256 == run.model.module_sha256 else None


def trust_value(owner: str, code: OwnCode) -> str:
    """Return the value of `--trust` that allows this code of this owner, and no other code.

    A key alone would allow everything that its owner, or a thief of the key, signs later.
    """
    return f"{owner}:{code.sha256}"


def open_source(run: RunFile, code: OwnCode | None) -> ModelSource:
    """Return the source that builds the model of a pinned run.

    Args:
        run: the run, pinned.
        code: the run's own code, which is executed: the caller has checked that it may run here.

    Raises:
        SourceError: the model cannot be built.
    """
    whole, train = _whole_source(run, code), run.train
    if train is None:
        return whole
    adapters = Adapters(train.rank, train.alpha, train.dropout, train.targets)
    return PartlyTrained(whole, adapters)


def _whole_source(run: RunFile, code: OwnCode | None) -> ModelSource:
    model = run.model
    if model.huggingface is not None:
        assert model.huggingface_config is not None, "pinned when it was founded"
        has = {"target_share": run.data.learns_answers, "positions": bool(run.data.attention)}
        entries = [name for name, is_there in has.items() if is_there]
        config = read_config(model.huggingface_config)
        with bounded_memory():  # the library makes lists as long as a config says
            return HuggingFaceSource(config, model.sequence_tokens, entries)
    if model.module is not None:
        assert code is not None, "fetched before"
        sequence_tokens = None if run.data.source == "module" else model.sequence_tokens
        return ModuleSource(code, run.run.seed, sequence_tokens)
    assert model.vocabulary_size is not None, "a pinned run knows its vocabulary"
    shape = model.shape()
    return GPT3Source(GPT3Config.build(vocabulary_size=model.vocabulary_size, **shape))


def open_samples(run: RunFile, source: ModelSource, text: Samples | None) -> Samples:
    """Return the run's samples, from its text or from the dataset of its module.

    Args:
        run: the run, pinned.
        source: builds the model.
        text: the run's text as `open_text` returns it; None: use the dataset of the module.

    Raises:
        SourceError: the dataset cannot be used.
        ConfigError: the tokenizer has more tokens than the model.
    """
    if text is None:
        source = source.whole if isinstance(source, PartlyTrained) else source
        assert isinstance(source, ModuleSource)
        fraction = run.data.validation_fraction
        return own_samples(source.dataset, source.example, fraction, run.run.seed)
    if source.vocabulary_size is not None and source.vocabulary_size < text.vocabulary_size:
        raise ConfigError(
            f"model.{run.model.source}: the model has {source.vocabulary_size} tokens, "
            f"the run's tokenizer {text.vocabulary_size}",
            "use the model's own tokenizer.json, or raise the vocabulary in its config",
        )
    return replace(text, to_batch=source.text_batch)


def config_text(path: Path) -> str:
    """Return the text of a config.json. Raises: SourceError."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
        return raw.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or "not UTF-8 text"
        inside = isinstance(error, IsADirectoryError)
        hint = "name the config.json in it" if inside else "the path is relative to the run file"
        raise SourceError(f"{path} cannot be read: {what}", hint) from error
