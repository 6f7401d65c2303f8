"""Plan of a run from its run file and the peer file: read, pin and trace, then plan."""

from collections.abc import Callable
from pathlib import Path

from atom.base.errors import ConfigError, TrustError
from atom.config.load import check_checkpoints, load_peer_file
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory, named_state_directory
from atom.config.run_file import RunFile
from atom.config.sources import text_sources
from atom.daemon.model.model_source import open_source, pin_source, source_errors
from atom.daemon.model.recipe import PRECISIONS, trace_run
from atom.daemon.model.shared_text import total_bytes
from atom.daemon.state_directory import StateDirectory
from atom.graph.profile.seconds import assumed_device
from atom.graph.traced import Graph
from atom.models.data.tokenizer import load_tokenizer
from atom.models.own_code import OwnCode
from atom.plan.devices import set_arithmetic
from atom.plan.footprint import Footprint
from atom.plan.planning import Plan, PlanRequest, plan_traced
from atom.training.run_optimizer import load_run


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
    run, folder, peer = request.run, None, load_peer_file(request.peer_file)
    if isinstance(run, Path):
        folder, run = run.absolute().parent, load_run(run)
    check_checkpoints(peer, run)
    if request.assume is not None:
        assumed_device(request.assume, PRECISIONS[run.model.precision])  # fail early
    set_arithmetic(peer.device)
    run, graph, model = _trace(run, peer, folder)
    named = named_state_directory(None, peer.state.directory)
    state = StateDirectory(named or default_state_directory(run.run.name))
    text_bytes = 0 if request.text is None else total_bytes(request.text)
    takes = peer, state.room_bytes, text_bytes, request.peers
    footprint = Footprint.of_run(run, graph.layout, *takes)
    return plan_traced(request, run, graph, model, peer, footprint, note)


def _trace(run: RunFile, peer: PeerFile, folder: Path | None) -> tuple[RunFile, Graph, str]:
    """Return the run as its founder pins it, its graph, and the name of its model."""
    with source_errors(run):
        run, code = _pinned(run, peer, folder)
        source = open_source(run, code)
        return run, trace_run(run, source), source.name


def _pinned(run: RunFile, peer: PeerFile, folder: Path | None) -> tuple[RunFile, OwnCode | None]:
    """Return the run with its model's source and vocabulary pinned, and the model's own code.

    Args:
        run: The run as the file or the manifest gives it.
        peer: Sources of text on this machine.
        folder: Folder of the run file; None: the run comes from a manifest and is pinned already.

    Raises:
        TrustError: The run comes from a manifest and its model is its owner's code.
    """
    if folder is None:
        if run.model.module is not None:
            said = "this run's model is code of its owner, and nothing of it is run for a plan"
            raise TrustError(
                said, "ask the owner for the run file and the code: atom plan RUN.toml"
            )
        return run, None
    run, code = pin_source(run, folder, run.model.weights == "given")
    if run.model.family is not None and run.model.vocabulary_size is None:
        run = run.changed("model", vocabulary_size=_vocabulary(run, peer, folder))
    return run, code


def _vocabulary(run: RunFile, peer: PeerFile, folder: Path) -> int:
    """Return the vocabulary size of the founder's tokenizer, or raise ConfigError."""
    try:
        return load_tokenizer(text_sources(run, peer, folder).tokenizer).vocabulary_size
    except ValueError as problem:
        raise ConfigError(
            f"the run's vocabulary is not known: {problem}",
            "put the tokenizer in its place, or set [model] vocabulary_size",
        ) from problem
