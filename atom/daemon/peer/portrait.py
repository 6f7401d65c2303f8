"""How a peer shows itself: its lease to the swarm, its information to its owner."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atom.daemon.peer.lifecycle import Facts, peer_state
from atom.daemon.peer.parts import Parts
from atom.swarm.chain.commit import Value
from atom.swarm.records.lease import MAX_LINKS, SHOWN, Lease, NamedLink, PeerState, short_name
from atom.swarm.records.view import void_text
from atom.training.replica.pacing import READ_S, reading_pause
from atom.training.round import RoundMachine
from atom.training.round.events import Phase, View


def lease_of(parts: Parts, machine: RoundMachine, facts: Facts, serial: int, gone: bool) -> Lease:
    """The lease as of now: a count for this very head."""
    head, stats = machine.head, parts.executor.stats
    rate = parts.worker.rate()
    return Lease(
        peer_id=parts.me.peer_id,
        incarnation=parts.me.incarnation,
        serial=serial,
        issued_at=time.time(),
        state=PeerState.LEFT if gone else peer_state(replace(facts, phase=machine.phase)),
        head=head.digest,
        round=head.round,
        sequences=parts.worker.own_sequences(head.digest),
        sequences_per_s=rate,
        tokens_per_s=rate * parts.member.samples.tokens_per_sample,
        pass_seconds=parts.worker.pass_seconds,
        loss=_loss_of(stats.last, head.round),
        state_digest=machine.state_digest,
        addresses=parts.data_addresses(),
        reached=parts.outreach.reached,
        links=tuple(
            NamedLink(short_name(peer_id), link)
            for peer_id, link in parts.executor.exchange.speeds.links(MAX_LINKS).items()
        ),
        ended_attempts=parts.ended_attempts.last,
        branches=head.branches[-SHOWN:],
        branches_before=len(head.branches[:-SHOWN]),
        void_passes=stats.void_in_a_row,
        void_cause=stats.void_cause,
        last_round=stats.use,
    )


def _loss_of(last: Value | None, round_number: int) -> float | None:
    """The worker's thread tallies a round when it steps, so what it knows may be of another."""
    return last.loss if last is not None and last.round == round_number else None


def reading_pause_of(parts: Parts, machine: RoundMachine) -> float:
    """Seconds until the others' leases are read again."""
    if machine.phase is not Phase.ACCUMULATING:
        return READ_S
    own, swarm = parts.worker.own_sequences(machine.head.digest), parts.worker.swarm
    return reading_pause(own, parts.worker.rate(), swarm, machine.policy)


def info_of(
    parts: Parts, machine: RoundMachine | None, facts: Facts, view: View
) -> Mapping[str, Any]:
    """What `atom info` shows; `machine` is None until our last state is rebuilt."""
    run, stats = parts.member.run, parts.executor.stats
    rate = parts.worker.rate()
    state = PeerState.STARTING
    if machine is not None:
        state = peer_state(replace(facts, phase=machine.phase))
    return {
        "run": parts.member.manifest.run,
        "peer_id": parts.me.peer_id,
        "state": state.value,
        "trouble": void_text(stats.void_in_a_row, stats.void_cause) or None,
        "paused": parts.worker.gate.why_not or None,
        "wishes": parts.wishes.figures(),
        "reloading": parts.settings.doing or None,
        "device_turns": parts.turns.figures(),
        "round": machine.head.round if machine else 0,
        "rounds": run.run.rounds,
        "global_batch": run.batch.global_sequences,
        "data": parts.member.samples.amount._asdict(),
        "update_rule": run.update.rule,
        "optimizer_state": run.optimizer.state,
        "gradients": run.optimizer.gradients,
        "codec": run.swarm.codec,
        "mini_batches": parts.worker.own_sequences(machine.head.digest) if machine else 0,
        "rounds_joined": stats.rounds_joined,
        "sequences_committed": stats.sequences_committed,
        "sequences_per_s": round(rate, 3),
        "tokens_per_s": round(rate * parts.member.samples.tokens_per_sample, 1),
        "loss": stats.last and stats.last.loss,
        "passes_voided": dict(stats.void_passes),
        "last_round": stats.use and stats.use._asdict(),
        "last_pass": parts.member.replica.watch.figures(),
        "disk": disk_of(parts),
        "digest": machine.state_digest.hex() if machine else "",
        "voters": [voter.peer_id for voter in machine.head.voters] if machine else [],
        "peers": sorted(view.fresh),
        "data_addresses": list(parts.data_addresses()),
        "reachable": parts.outreach.reached.value or "unknown",
        "links": {
            peer_id: {
                "round_trip_ms": round(1e3 * link.round_trip_s, 1),
                "bytes_per_s": round(link.bytes_per_s) if math.isfinite(link.bytes_per_s) else None,
            }
            for peer_id, link in parts.executor.exchange.speeds.links(MAX_LINKS).items()
        },
    }


def disk_of(parts: Parts) -> Mapping[str, Any]:
    """What lies on disk, and what does not because there is no room."""
    storage = parts.storage
    return {
        "snapshots": [snapshot.round for snapshot in storage.snapshots()],
        "free_bytes": storage.room.free_bytes(),
        "paused": storage.room.paused,
    }
