"""Status of a peer: the lease that it publishes, and the figures of `atom info` for its owner."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from atom.daemon.peer.addresses import data_addresses
from atom.daemon.peer.box import Box
from atom.daemon.peer.lifecycle import Life, peer_state
from atom.swarm.chain.commit import Head, Value
from atom.swarm.records.lease import MAX_LINKS, SHOWN, Lease, PeerState
from atom.swarm.records.view import usual_round_s, validation_json, void_text
from atom.swarm.transport.outreach import Outreach
from atom.training.replica.pacing import READ_S, reading_pause
from atom.training.round.events import Phase
from atom.training.storage.checkpoints import figures

if TYPE_CHECKING:
    from atom.daemon.peer.founding import Membership
    from atom.daemon.peer.training import Training


@dataclass(frozen=True)
class Status:
    """Reader of a peer's parts, from which leases and figures are composed. Thread-safe."""

    box: Box
    member: "Membership"
    training: "Training"
    outreach: Outreach
    life: Life

    @property
    def head(self) -> Head:
        """Head of our chain."""
        return self.training.machine.head

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses "host:port" for other peers' data; empty if this peer only dials."""
        transport, network = self.training.executor.transport, self.box.peer.network
        if not transport.listens:
            return ()
        bound = transport.address
        return data_addresses(network, bound, self.box.ports.outside(bound[1]))

    def lease(self, serial: int) -> Lease:
        """Return our current lease, unsigned.

        Args:
            serial: number of the lease, larger than any number before.
        """
        training, me = self.training, self.box.me
        head, stats = training.machine.head, training.executor.stats
        rate = training.worker.rate()
        return Lease(
            peer_id=me.peer_id,
            incarnation=me.incarnation,
            serial=serial,
            issued_at=time.time(),
            state=self._state(),
            head=head.digest,
            round=head.round,
            sequences=training.sequences,
            sequences_per_s=rate,
            tokens_per_s=rate * self.member.samples.tokens_per_sample,
            pass_seconds=training.worker.pass_seconds,
            loss=_loss_of(stats.last, head.round),
            state_digest=training.machine.state_digest,
            addresses=self.addresses,
            reached=self.outreach.reached,
            links=tuple(training.executor.exchange.speeds.links(MAX_LINKS).values()),
            branches=head.branches[-SHOWN:],
            branches_before=len(head.branches[:-SHOWN]),
            void_passes=stats.void_in_a_row,
            void_cause=stats.void_cause,
            last_round=stats.use,
            validation=stats.validation,
            sample=stats.sample,
            name=self.box.peer.network.name or "",
        )

    def info(self) -> Mapping[str, Any]:
        """Return the figures of `atom info` about the peer and its run, JSON-serialisable."""
        training, run = self.training, self.member.run
        stats, head = training.executor.stats, training.machine.head
        view = training.loop.view
        mates = (lease for lease in view.fresh.values() if lease.head == head.digest)
        rate, engines = training.worker.rate(), training.shared.replica.engines
        return {
            "run": self.member.manifest.run,
            "peer_id": self.box.me.peer_id,
            "name": self.box.peer.network.name,
            "state": self._state().value,
            "trouble": void_text(stats.void_in_a_row, stats.void_cause) or None,
            "paused": training.worker.gate.why_not or None,
            "round": head.round,
            "rounds": run.run.rounds,
            "global_batch": run.batch.global_sequences,
            "data": self.member.samples.amount._asdict(),
            "accounts": {name: asdict(each) for name, each in self.member.samples.accounts.items()},
            "epochs": self.member.samples.epochs(head.cursor),
            "update_rule": run.update.rule,
            "optimizer_state": run.optimizer.state,
            "gradients": run.optimizer.gradients,
            "codec": run.swarm.codec,
            "sequences": training.sequences,
            "rounds_joined": stats.rounds_joined,
            "sequences_committed": stats.sequences_committed,
            "sequences_per_s": round(rate, 3),
            "tokens_per_s": round(rate * self.member.samples.tokens_per_sample, 1),
            "loss": stats.last and stats.last.loss,
            "validation": validation_json(stats.validation, run.data),
            "sample": stats.sample and stats.sample._asdict(),
            "sent_bytes": training.executor.transport.bandwidth.sent_bytes,
            "received_bytes": training.executor.transport.bandwidth.received_bytes,
            "passes_voided": dict(stats.void_passes),
            "last_round": stats.use and stats.use._asdict(),
            "round_s": usual_round_s([self.lease(0), *mates]),
            "pass_sequences_per_s": training.worker.pass_rate(),
            "last_pass": training.shared.replica.watch.figures(),
            "devices": dict(engines.devices),
            "disk": self._disk(),
            "digest": training.machine.state_digest.hex(),
            "voters": [voter.peer_id for voter in head.voters],
            "peers": sorted(view.fresh),
            "peer_names": {peer: each.name for peer, each in view.fresh.items() if each.name},
            "data_addresses": list(self.addresses),
            "reachable": self.outreach.reached.value or "unknown",
            "links": self._links(),
        }

    def reading_pause_s(self) -> float:
        """Return the seconds until the other peers' leases should be read again."""
        machine, worker = self.training.machine, self.training.worker
        if machine.phase is not Phase.ACCUMULATING:
            return READ_S
        counted = self.training.sequences
        return reading_pause(counted, worker.rate(), worker.swarm, machine.global_batch)

    def _links(self) -> Mapping[str, Any]:
        links = self.training.executor.exchange.speeds.links(MAX_LINKS)
        return {
            peer_id: {
                "round_trip_ms": round(1e3 * link.round_trip_s, 1),
                "bytes_per_s": round(speed) if math.isfinite(speed := link.bytes_per_s) else None,
            }
            for peer_id, link in links.items()
        }

    def _state(self) -> PeerState:
        return peer_state(replace(self.life.facts, phase=self.training.machine.phase))

    def _disk(self) -> Mapping[str, Any]:
        """Return the kept rounds, the free bytes, and the reasons why files are not written."""
        training = self.training
        storage, checkpoints = training.shared.storage, training.executor.checkpoints
        return {
            "snapshots": [snapshot.round for snapshot in storage.snapshots()],
            "checkpoints": figures(checkpoints.listed()),
            "free_bytes": storage.room.free_bytes(),
            "paused": storage.room.paused,
        }


def _loss_of(last: Value | None, round_number: int) -> float | None:
    """Return the loss of a round; None if the worker's newest figures are of another round."""
    return last.loss if last is not None and last.round == round_number else None
