"""Plan of a run from its run file and the peer file: read, pin and trace, then plan."""

from collections.abc import Callable
from pathlib import Path

from atom.base.errors import TrustError
from atom.config.load import check_checkpoints, load_peer_file
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory, named_state_directory
from atom.config.run_file import PinnedRun, RunFile
from atom.daemon.model.pinning import pin_for_plan
from atom.daemon.model.recipe import PRECISIONS, open_source, source_errors, trace_run
from atom.daemon.model.texts import total_bytes
from atom.daemon.state_directory import StateDirectory
from atom.graph.profile.seconds import assumed_device
from atom.graph.traced import Graph
from atom.models.module_source import OwnCode
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
    text_bytes = 0 if request.text is None else total_bytes(request.text)
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
    with source_errors(run):
        if not isinstance(run, PinnedRun):
            run, code = pin_for_plan(run, folder, peer)
        elif run.model.module is not None:
            said = "this run's model is code of its owner, which a plan does not execute"
            raise TrustError(
                said, "ask the owner for the run file and the code: atom plan RUN.toml"
            )
        source = open_source(run, code)
        return run, trace_run(run, source), source.name
