"""The whole examination, in the order in which a person mends what is wrong."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atom.config.load import load_peer_file
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory, named_state_directory, state_home
from atom.daemon.peer.box import kept_peer
from atom.daemon.state_directory import StateDirectory
from atom.extras.doctor import swarm_side, this_box
from atom.extras.doctor.this_box import Finding, unchecked
from atom.swarm.addresses import parse_join_address


@dataclass(frozen=True)
class DoctorRequest:
    """What `atom doctor` was asked."""

    address: str | None = None
    peer_file: Path | None = None
    state: Path | None = None


def examine(request: DoctorRequest, note: Callable[[str], None]) -> list[Finding]:
    """`note` is told what is looked at now. Raises: ConfigError; AddressError if it is none."""
    peer, folder = box_of(request)
    is_ours = StateDirectory(folder).in_use
    note("looking at the machine")
    found = [
        this_box.python(),
        *this_box.libraries(),
        this_box.kernels(),
        this_box.gpu(peer.device, this_box.daemon_runs(folder)),
        *this_box.windows(),
        this_box.memory(peer.host.memory_bytes),
        this_box.disk(folder),
        *this_box.ports(peer, is_ours),
    ]
    synchronised = this_box.clock_synchronised()
    if request.address is None:
        said = "no address was given: atom doctor ADDRESS looks at a swarm, too"
        return [*found, this_box.clock(None, synchronised), unchecked("Swarm", said)]
    note("looking for the swarm")
    sight = asyncio.run(swarm_side.look(request.address, folder))
    if isinstance(sight, Finding):
        return [*found, this_box.clock(None, synchronised), sight]
    found += [this_box.clock(sight.offset_s, synchronised), *swarm_side.swarm(sight)]
    note("reckoning whether the run fits")
    return [*found, swarm_side.fit(sight.manifest, peer, folder, is_ours)]


def box_of(request: DoctorRequest) -> tuple[PeerFile, Path]:
    """The peer file and the state directory that `atom join` would have. Raises: ConfigError;
    AddressError."""
    peer = load_peer_file(request.peer_file)
    folder = state_of(request, peer)
    return (kept_peer(StateDirectory(folder)) if request.peer_file is None else peer), folder


def state_of(request: DoctorRequest, peer: PeerFile) -> Path:
    """Where the peer that is asked about has its state, or would have it: with an address, as
    `atom join` has it. Raises: AddressError if that is none."""
    run = None if request.address is None else parse_join_address(request.address).run
    usual = state_home() if run is None else default_state_directory(run)
    return named_state_directory(request.state, peer.state.directory) or usual
