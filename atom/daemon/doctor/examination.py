"""The whole examination: every look in turn, then what it means."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from atom.base.errors import UserError
from atom.config.load import load_peer_file, run_from_text
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory, named_state_directory, state_home
from atom.daemon.doctor import gathering
from atom.daemon.doctor.capacity import fit_of, largest_of_family, precision_for
from atom.daemon.doctor.facts import Capacity, Clock, Facts, Fit, Gpu
from atom.daemon.doctor.swarm_side import Sight, look
from atom.daemon.peer.box import kept_peer
from atom.daemon.state_directory import StateDirectory
from atom.swarm.addresses import parse_join_address
from atom.swarm.records.manifest import Manifest, manifest_digest

OWN_CODE = "the run's model is code of its owner: join with --trust, and it tells"


@dataclass(frozen=True)
class DoctorRequest:
    """What `atom doctor` was asked."""

    address: str | None = None
    peer_file: Path | None = None
    state: Path | None = None


def examine(request: DoctorRequest, note: Callable[[str], None]) -> Facts:
    """`note` is told what is looked at now. Raises: ConfigError; AddressError if it is none."""
    peer, folder = box_of(request)
    note("looking at the machine")
    software, machine = gathering.software(), gathering.machine(peer)
    note("measuring the optimizer")
    memory = gathering.memory(peer)
    note("measuring the disk")
    disk, ports = gathering.disk(folder), gathering.ports(peer, folder)
    sight: Sight | None = None
    if request.address is not None:
        note("looking for the swarm")
        sight = asyncio.run(look(request.address, folder))
    offset = None if sight is None else sight.offset_s
    clock = Clock(gathering.clock_synchronised(), offset)
    note("reckoning what fits")
    manifest = None if sight is None else sight.manifest
    capacity = _capacity(peer, machine.gpu, folder, manifest)
    swarm = None if sight is None else sight.swarm
    runs = gathering.daemon_runs(folder)
    return Facts(software, machine, memory, disk, ports, clock, capacity, swarm, runs)


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


def _capacity(peer: PeerFile, gpu: Gpu | None, folder: Path, manifest: Manifest | None) -> Capacity:
    cpu, card = torch.device("cpu"), torch.device("cuda", peer.device.gpu_index)
    device = cpu if gpu is None else card
    best = precision_for(None if gpu is None else gpu.computes_bfloat16)
    largest, larger = largest_of_family(peer, device, *best, folder)
    if manifest is None:
        return Capacity(largest, larger)
    run, problem = _run_fit(manifest, peer, device, folder)
    trains_it = gathering.trains(folder, manifest_digest(manifest))
    return Capacity(largest, larger, run, problem, trains_it)


def _run_fit(
    manifest: Manifest, peer: PeerFile, device: torch.device, folder: Path
) -> tuple[Fit | None, str]:
    try:
        run = run_from_text(manifest.run_file)
        if run.model.module is not None:
            return None, OWN_CODE
        return fit_of(run, run.run.name, peer, device, folder), ""
    except UserError as problem:
        return None, problem.message
