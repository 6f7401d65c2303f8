"""Use of this machine to a run, and what training takes of it: a plan next to the live swarm."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.graph.traced import Graph
from atom.plan.devices import card_figures
from atom.plan.footprint import Footprint
from atom.plan.planning import Plan, PlanRequest, plan_traced
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.manifest import Manifest
from atom.swarm.records.view import SwarmView, owners_among, trained_on, view_swarm
from atom.training.run_optimizer import ReplicaTerms

LITTLE = 0.1
"""Speed, as a fraction of the median peer's, below which a machine hardly helps."""
_AT_WORK = {PeerState.ACCUMULATING, PeerState.REDUCING, PeerState.STEPPING}


@dataclass(frozen=True)
class Offer:
    """Use of this machine to a swarm, and what that takes of it, if it trains all the time."""

    plan: Plan
    view: SwarmView
    fetched_bytes: int
    """Bytes of state and text that are fetched once."""
    average_bytes: int = 0
    """Bytes of a round's average as it travels."""

    @classmethod
    def of(
        cls,
        run: RunFile,
        graph: Graph,
        peer: PeerFile,
        manifest: Manifest,
        leases: Iterable[Lease],
        me: str,
        disk_bytes: int,
        text_bytes: int,
        note: Callable[[str], None] = lambda text: None,
    ) -> "Offer":
        """Plan this machine's part in a swarm. Measuring takes half a minute at most.

        Args:
            run: Settings of the run, pinned.
            graph: The run's model, traced.
            peer: Devices and limits of this machine.
            manifest: Manifest of the run.
            leases: Leases of the swarm.
            me: Peer id of this machine; empty if it has none.
            disk_bytes: Disk space that is free now, or already taken by the run's files.
            text_bytes: Size of the text that comes through the swarm.
            note: Receives lines of text about steps that take long and about unexpected facts.

        Raises:
            DeviceError: The model does not fit the device.
            ConfigError: The run's optimizer cannot be used as the run file says.
        """
        batch = run.batch.global_sequences
        view = view_swarm(manifest, leases, batch, time.time(), me, run.data)
        others = sum(p.state != PeerState.LEFT and p.peer_id != me for p in view.peers)
        footprint = Footprint.of_run(run, graph.layout, peer, disk_bytes, text_bytes, others + 1)
        dialable = max(1, owners_among(view.peers))
        request = PlanRequest(run, peers=others + 1, dialable=dialable, guesses=True)
        plan = plan_traced(request, run, graph, graph.model_name, peer, footprint, note)
        terms = ReplicaTerms.of(run, graph.layout)
        state_bytes = sum(each.size_bytes for each in terms.shared.values()) + terms.frozen_bytes
        return cls(plan, view, state_bytes + text_bytes, terms.average_bytes)

    @property
    def speed(self) -> str:
        """Text such as "about 9,238 tokens/s here, 1.4 times the median of 3 other peers: useful".

        The swarm leaves this machine as much of its time for passes as it leaves other peers.
        """
        others = [
            (peer.tokens_per_s, peer.last_round.utilisation)
            for peer in self.view.peers
            if peer.state in _AT_WORK and peer.last_round and peer.peer_id != self.view.me
        ]
        speeds, shares = zip(*others, strict=True) if others else ((0.0,), (1.0,))
        median, mine = statistics.median(speeds), self.plan.gain.alone * statistics.median(shares)
        text = f"about {mine:,.0f} {trained_on(self.view.data_amount)}/s here"
        if median:
            whom = f"the median of {len(others)} other peers" if len(others) > 1 else "another peer"
            text = f"{text}, {mine / median:.2g} times {whom} ({median:,.0f})"
        if self.plan.profile.source == "assumed":
            return f"{text}; only a guess, because measuring this model takes long: run atom plan"
        if self.plan.profile.doubtful:
            return f"{text}; doubtful: other programs are at work, measure again when it is idle"
        helps = "useful" if mine > LITTLE * median else "hardly useful: try a smaller run"
        return f"{text}: {helps}"

    @property
    def line_bytes_per_h(self) -> float:
        """Bytes that this machine sends in an hour; it receives as many."""
        round_s = self.view.round_s or self.plan.prediction.round_s
        return self.plan.footprint.wire_bytes / round_s * 3600

    @property
    def watts(self) -> float:
        """Power limits of all GPUs together, as far as they are known."""
        cards = [card_figures(torch.device(name)) for name in self.plan.device.split(", ")]
        return sum(each[0] for each in cards if each is not None)
