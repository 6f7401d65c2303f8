"""What a box would do for a run: where the model lies in memory and on disk, and at what pace."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from atom.base.home import nearest_folder
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.daemon.fitting.device_choice import (
    BOUNDARY_SHARE,
    cut_arenas,
    free_host_bytes,
    replica_arenas,
)
from atom.daemon.model.run_optimizer import replica_state, shared_state, update_rule
from atom.daemon.state_directory import StateDirectory
from atom.graph.ir import Program
from atom.graph.profile.seconds import Profile
from atom.graph.traced import Graph
from atom.placement.choice import Choice
from atom.placement.choosing import Question
from atom.placement.mode import Recommendation
from atom.placement.prediction import Gain, RoundPrediction, Surroundings, Work
from atom.swarm.exchange.codec import codec_named


@dataclass(frozen=True)
class HostPlan:
    """Host memory: flat arenas of one element per parameter (and padding)."""

    arenas: tuple[tuple[str, int], ...]
    """(what, bytes)."""
    have_bytes: int
    """The peer file's word, or what is free now."""

    @property
    def total_bytes(self) -> int:
        return sum(size for _, size in self.arenas)

    @property
    def boundary_bytes(self) -> int | None:
        """For values between sub-models. None where not even the replica fits: then only the
        verdict matters."""
        left = self.have_bytes - self.total_bytes
        return int(left * BOUNDARY_SHARE) if left > 0 else None

    def with_cut(
        self, program: Program, choice: Choice, on_gpu: bool, leaving: torch.dtype
    ) -> "HostPlan":
        """Adds what the cut costs."""
        more = cut_arenas(program, choice, on_gpu, leaving)
        return replace(self, arenas=(*self.arenas, *more))


@dataclass(frozen=True)
class DiskPlan:
    """The state directory, once it is as large as it gets."""

    snapshot_bytes: int
    """The kept ones, and the one being written."""
    result_bytes: int
    """Averages since the snapshot before the last: what joiners catch up from."""
    have_bytes: int
    """Free now, or taken by what there is of these already."""

    @property
    def total_bytes(self) -> int:
        return self.snapshot_bytes + self.result_bytes


@dataclass(frozen=True)
class DevicePlan:
    """What computes, and where its seconds come from."""

    title: str
    budget_bytes: int
    seconds_from: str
    """`measured` here, or `assumed` from the table."""
    link_bytes_per_s: float


@dataclass(frozen=True)
class Plan:
    """What a box would do for a run."""

    run: str
    model: str
    precision: str
    parameters: int
    micro_batch_sequences: int
    tokens_per_sequence: int
    """1 for a run whose module brings samples of its own."""
    graph: Graph
    program: Program
    profile: Profile
    question: Question
    host: HostPlan
    disk: DiskPlan
    device: DevicePlan
    choice: Choice
    work: Work
    surroundings: Surroundings
    prediction: RoundPrediction
    gain: Gain
    recommendation: Recommendation

    @property
    def fits(self) -> bool:
        """The device always does, or there is no plan."""
        host = self.host.total_bytes <= self.host.have_bytes
        return host and self.disk.total_bytes <= self.disk.have_bytes


def host_plan(run: RunFile, graph: Graph, peer: PeerFile) -> HostPlan:
    """Without what the cut costs: `HostPlan.with_cut`."""
    arenas = replica_arenas(run, graph.layout)
    return HostPlan(tuple(arenas), free_host_bytes(peer.host.memory_bytes))


def disk_plan(run: RunFile, graph: Graph, peer: PeerFile, root: Path) -> DiskPlan:
    """What there will be in the state directory `root`, and what room there is for it."""
    codec = codec_named(run.swarm.codec)
    result_bytes = codec.wire_bytes(graph.layout.total_elements)
    kept = peer.state.snapshots
    state_bytes = sum(each.size_bytes for each in shared_state(run, graph.layout).values())
    own_bytes = update_rule(run).saved_bytes(replica_state(run, graph.layout))
    free_bytes = shutil.disk_usage(nearest_folder(root)).free
    return DiskPlan(
        snapshot_bytes=(kept + 1) * state_bytes + 2 * own_bytes,
        result_bytes=kept * run.snapshot.every_rounds * result_bytes,
        have_bytes=free_bytes + StateDirectory(root).kept_bytes,
    )
