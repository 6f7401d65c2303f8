"""Pinning of a run: the founder fills in the keys by which all peers build the same model and data.

A joiner reads the pinned run from the manifest. A plan needs a pinned run, too, but no texts.
"""

from collections.abc import Callable
from pathlib import Path

from atom.base.errors import ConfigError, MismatchError, TrustError
from atom.config.load import check_checkpoints, fill_in, load_peer_file, pinned_run
from atom.config.model_and_data import ANSWERS, MAX_ENDS, Data, Model
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory, hub_place, named_state_directory
from atom.config.run_file import PinnedRun, RunFile
from atom.config.sources import text_sources
from atom.daemon.model.recipe import PRECISIONS, open_source, trace_run
from atom.daemon.model.texts import Texts, pinned_tables, read_texts, total_bytes
from atom.daemon.state_directory import StateDirectory
from atom.graph.costs.seconds import assumed_device
from atom.graph.traced import Graph
from atom.models.data.conversations import ChatTemplate
from atom.models.data.corpus import Progress
from atom.models.data.tokenizer import JsonTokenizer, Tokenizer, load_tokenizer
from atom.models.hub import fetch_config, newest_revision
from atom.models.huggingface_config import canonical_config, config_text
from atom.models.module_source import OwnCode, find_code
from atom.plan.devices import set_arithmetic
from atom.plan.footprint import Footprint
from atom.plan.planning import Plan, PlanRequest, plan_traced
from atom.swarm.records.manifest import Manifest
from atom.training.run_optimizer import load_run

MOST_SHARED_BYTES = 20 * 10**9
"""Size of the tokens up to which a run's text is shared, unless the run file says otherwise."""


def pin(
    run: RunFile,
    folder: Path,
    peer: PeerFile,
    cache: Path,
    progress: Progress,
    weights_given: bool = False,
    kept: PinnedRun | None = None,
) -> tuple[PinnedRun, OwnCode | None, Texts | None]:
    """Fix a founder's run to one model, one commit of each table, and one tokenizer.

    Args:
        run: content of the run file.
        folder: folder of the run file, to which paths are relative.
        peer: the peer file, whose places of texts take precedence.
        cache: folder for the tokens.
        progress: called while a text is tokenised.
        weights_given: True if the run begins from weights given with `--from`.
        kept: the run as it was founded, if it is continued; None for a new run.

    Returns:
        (pinned run, its own code or None, its texts or None for the dataset of its module).

    Raises:
        ConfigError: the config or the code of the model cannot be read.
        ConfigError: the run file contradicts the weights, or the text cannot be used.
        AddressError: the hub cannot be reached.
        StorageError: the disk is full.
    """
    model, code = _pinned_model(run.model, folder, weights_given, kept)
    sources = text_sources(run, peer, folder)
    data = pinned_tables(run.data, sources, kept)
    texts = None
    if data.source != "module":
        texts = read_texts(run.model_copy(update={"data": data}), sources, cache, progress)
        data = _with_texts(data, texts)
        if model.family is not None:
            size = model.vocabulary_size or texts.tokenizer.vocabulary_size
            model = model.model_copy(update={"vocabulary_size": size})
    return fill_in(run, model, data), code, texts


def pin_for_plan(run: RunFile, folder: Path, peer: PeerFile) -> tuple[PinnedRun, OwnCode | None]:
    """Pin a run without its texts, for a plan, which reads none.

    Args:
        run: content of the run file.
        folder: folder of the run file.
        peer: the peer file, which may name the place of the tokenizer.

    Returns:
        (run, own code of the run or None).

    Raises:
        ConfigError: the config or the code of the model cannot be read.
        ConfigError: the vocabulary of the model is not known.
    """
    model, code = _pinned_model(run.model, folder, run.model.weights == "given")
    if model.family is not None and model.vocabulary_size is None:
        try:
            size = load_tokenizer(text_sources(run, peer, folder).tokenizer).vocabulary_size
        except ValueError as problem:
            raise ConfigError(
                f"the run's vocabulary is not known: {problem}",
                "provide the tokenizer file, or set [model] vocabulary_size",
            ) from problem
        model = model.model_copy(update={"vocabulary_size": size})
    data = run.data
    if data.attention is not None:
        data = data.model_copy(update={"end_token": 0})  # of no effect where no text is read
    return fill_in(run, model, data), code


def agreed_run(manifest: Manifest) -> PinnedRun:
    """Return the run of a (verified) manifest.

    Raises:
        ConfigError: its run file is not valid, or lacks a key that founders fill in.
        MismatchError: the run has another name.
    """
    run = pinned_run(manifest.run_file)
    if run.run.name != manifest.run:
        raise MismatchError(f"the manifest of {manifest.run!r} holds the run {run.run.name!r}")
    return run


def _pinned_model(
    model: Model, folder: Path, weights_given: bool, kept: PinnedRun | None = None
) -> tuple[Model, OwnCode | None]:
    """Return [model] with the config.json or the digest of the code, and the run's own code.

    Raises:
        ConfigError: the config or the code cannot be read.
        ConfigError: the run file contradicts what was found, or the given weights.
    """
    code = config = revision = None
    if model.module is not None:
        code = find_code(model.module, folder)
    elif model.huggingface is not None:
        place = hub_place(model.huggingface, folder)
        if Path(place).is_absolute():
            config = canonical_config(config_text(Path(place)))
        elif kept is not None and kept.model.huggingface == place:
            config, revision = kept.model.huggingface_config, kept.model.revision
        else:
            revision = model.revision or newest_revision(place, "model")
            config = canonical_config(config_text(fetch_config(place, revision)))
    found = {"huggingface_config": config, "revision": revision}
    found["module_sha256"] = None if code is None else code.sha256
    return model.pinned(found, weights_given), code


def _with_texts(data: Data, texts: Texts) -> Data:
    """Return [data] with all that texts and tokenizer determine.

    Raises:
        ConfigError: the tokenizer has no token for the end of a document, but the run needs one.
    """
    answers = {name for name, text in data.texts.items() if text.train_on == ANSWERS}
    shares = {text.name: text.target_share for text in texts.tokens if text.name in answers}
    size, end = sum(text.file.tokens.nbytes for text in texts.tokens), texts.tokenizer.end
    if data.attention is not None and len(end) != 1:
        raise ConfigError(
            "data.attention: the tokenizer has no end-of-text token, which separates documents",
            "remove it, or use another tokenizer",
        )
    found = {
        "tokenizer_sha256": texts.tokenizer.digest,
        "end_token": None if data.attention is None else end[0],
        "answer_ends": _answer_ends(texts.tokenizer),
        "share": data.share or ("swarm" if size <= MOST_SHARED_BYTES else "own-copy"),
    }
    return data.with_each("answer_share", shares).model_copy(update=found)


def _answer_ends(tokenizer: Tokenizer) -> tuple[int, ...] | None:
    """Return the tokens that end an answer, first the one that the chat template writes."""
    found = ChatTemplate(tokenizer).answer_end() if isinstance(tokenizer, JsonTokenizer) else None
    first = () if found is None else (found,)
    return tuple(dict.fromkeys([*first, *tokenizer.ends]))[:MAX_ENDS] or None


# ---- plans


def plan_run(request: PlanRequest, note: Callable[[str], None]) -> Plan:
    """Plan a run from its run file and the peer file.

    Args:
        request: Arguments of `atom plan`.
        note: Receives lines of text about steps that take long and about unexpected facts.

    Raises:
        ConfigError: A file is not valid, or the vocabulary is not known.
        ModelError: The model cannot be traced or measured.
        DeviceError: The model does not fit the device. The message names the operation that needs
            most memory.
        TrustError: The run comes from a swarm and its model is its owner's code.
    """
    run: Path | RunFile = request.run
    folder, peer = Path(), load_peer_file(request.peer_file)
    if isinstance(run, Path):
        folder, run = run.absolute().parent, load_run(run)
    check_checkpoints(peer, run)
    if request.assume is not None:
        assumed_device(request.assume, PRECISIONS[run.model.precision])  # fail early
    set_arithmetic(peer.device)
    run, graph, model = _trace(run, peer, folder)
    named = named_state_directory(None, peer.state.directory)
    state = StateDirectory(named or default_state_directory(run.run.name))
    text_bytes = total_bytes(request.text)
    takes = peer, state.room_bytes, text_bytes, request.peers
    footprint = Footprint.of_run(run, graph.layout, *takes)
    return plan_traced(request, run, graph, model, peer, footprint, note)


def _trace(run: RunFile, peer: PeerFile, folder: Path) -> tuple[PinnedRun, Graph, str]:
    """Return the run as its founder pins it, its graph, and the name of its model.

    Args:
        run: The run; a pinned one comes from a manifest.
        peer: Sources of text on this machine.
        folder: Folder of the run file.

    Raises:
        TrustError: The run comes from a manifest and its model is its owner's code.
    """
    code: OwnCode | None = None
    if not isinstance(run, PinnedRun):
        run, code = pin_for_plan(run, folder, peer)
    elif run.model.module is not None:
        said = "this run's model is code of its owner, which a plan does not execute"
        raise TrustError(said, "ask the owner for the run file and the code: atom plan RUN.toml")
    source = open_source(run, code)
    return run, trace_run(run, source), source.name
