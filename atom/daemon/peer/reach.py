"""Reach of a peer: its transport, the directory of the run, and the leases of all peers.

`Status` composes the lease that the peer publishes, and the figures of `atom info`.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from atom.base.errors import IdentityError
from atom.daemon.peer.addresses import KeptContacts, data_addresses, data_place, dialled_by
from atom.daemon.peer.box import Box
from atom.daemon.peer.founding import Membership, PeerContext
from atom.daemon.peer.heartbeat import DirectoryThread, Heartbeat
from atom.daemon.peer.lifecycle import Life, peer_state
from atom.daemon.peer.news import ClockWatch, News
from atom.swarm.addresses import JoinAddress, format_join_address, with_entrances, with_head
from atom.swarm.chain.commit import Head, Value
from atom.swarm.records.lease import (
    MAX_LINKS,
    PROTOCOL_VERSION,
    SHOWN,
    HowReached,
    Lease,
    PeerState,
    Reached,
    TwinWatch,
    of_our_version,
    versions_text,
)
from atom.swarm.records.manifest import lease_key, listed_peers
from atom.swarm.records.view import usual_round_s, validation_json, void_text
from atom.swarm.state.blobs import BlobServer
from atom.swarm.stream.bandwidth import Bandwidth
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.lease_exchange import LeaseExchange
from atom.swarm.transport.limits import Handlers, KnownPeers
from atom.swarm.transport.outreach import Outreach
from atom.swarm.transport.transport import Transport
from atom.training.loop import Inbox
from atom.training.replica.pacing import LONG_EXCHANGE_S, READ_S, SELDOM_S, reading_pause
from atom.training.round.events import Phase
from atom.training.storage.checkpoints import figures
from atom.training.storage.disk import DiskRoom
from atom.training.storage.run_storage import RunStorage

if TYPE_CHECKING:
    from atom.daemon.peer.training import Training

TWIN_S = 20.0
"""Seconds after its start by which the later of two processes with one key sees the earlier one."""
TWIN_WORDS = "another process uses this peer's key, so the swarm cannot rely on either of them"
TWIN_HINT = "end one of them; a second peer needs an empty folder: --state FOLDER"
_REACHABLE = {"auto": Reached.UNKNOWN, "yes": Reached.YES, "no": Reached.NO}


@dataclass(frozen=True)
class Status:
    """Reader of a peer's parts, from which leases and figures are composed. Thread-safe."""

    box: Box
    member: Membership
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

    @property
    def reach(self) -> HowReached:
        """Way in which other peers connect to this peer, as far as it knows."""
        transport, reached = self.training.executor.transport, self.outreach.reached
        if reached is Reached.NO:
            return HowReached.PUNCHED if transport.is_steady else HowReached.CALLED
        if reached is Reached.UNKNOWN:
            return HowReached.UNKNOWN
        mapped = transport.listens and self.box.ports.outside(transport.address[1])
        return HowReached.MAPPED if mapped else HowReached.OPEN

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
            reach=self.reach,
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
            "reach": self.reach.value or "unknown",
            "links": self._links(),
        }

    def reading_pause_s(self) -> float:
        """Return the seconds until the other peers' leases should be read again."""
        machine, worker = self.training.machine, self.training.worker
        if machine.phase is not Phase.ACCUMULATING:
            took_s = max(self.training.executor.exchange.seconds.values(), default=0.0)
            is_long = machine.phase is Phase.REDUCING and took_s >= LONG_EXCHANGE_S
            return SELDOM_S if is_long else READ_S
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


class Reach:
    """Connections of this peer to the swarm, and the exchange of leases with other peers.

    Its methods are called on the main thread, unless they say otherwise.
    """

    def __init__(
        self,
        context: PeerContext,
        directory: DirectoryThread,
        storage: RunStorage,
        entrance: JoinAddress,
        news: News,
    ) -> None:
        """Build the parts, and start none.

        Args:
            context: objects that all parts of the peer share.
            directory: thread of the run's directory; the caller closes it after this object.
            storage: files that the transport serves.
            entrance: address of the run.
            news: notified whenever leases were read.
        """
        box, member, clock, report = context.box, context.member, context.clock, context.report
        self._me, self._identity, self._log = box.me, box.identity, box.events
        self._entrance, self._clock, self._report, self._news = entrance, clock, report, news
        self.inbox = Inbox(lambda sender, leases: self._heartbeat.hear(sender, leases))
        self.transport = transport_of(box, member, self.inbox, storage)
        wish = _REACHABLE[box.peer.network.reachable]
        self.outreach = Outreach(self.transport, wish, clock, box.events)
        self._directory = directory.directory
        place = lease_key(member.manifest.run, member.manifest.owner)
        self._exchange = LeaseExchange(box.me.peer_id, place, self.transport.public_hosts)
        self.transport.set_neighbours(lambda: self._exchange.neighbours(clock.now()))
        self._heartbeat = Heartbeat(
            directory, self._take, report, box.events, clock, self._exchange,
            self.transport.send,
        )  # fmt: skip
        self._contacts = KeptContacts(box.state.known_addresses, clock)
        self._clock_watch = ClockWatch(box.me.peer_id, box.events, report)
        self._twins, self._has_twin = TwinWatch(), False
        self._watching_since, self._serial = math.inf, 0
        self._other_versions = ""

    def start(self, own: Status) -> None:
        """Begin to publish our leases, and to read the other peers' leases.

        Args:
            own: composes our leases.
        """
        self._own, self._watching_since = own, self._clock.now()
        self._heartbeat.start(self._next_lease, own.reading_pause_s)

    def nudge(self) -> None:
        """Publish our lease soon, because it has changed."""
        self._heartbeat.nudge()

    def keep_contacts(self, room: DiskRoom) -> None:
        """Write the nodes of the DHT to disk for the next start, if that is due."""
        self._contacts.keep(self._directory.contacts(), room)

    def close(self) -> None:
        """Publish our last lease, and close the connections."""
        self._heartbeat.close()
        self.transport.close()

    def figures(self, head: Head) -> Mapping[str, Any]:
        """Return a part of `atom info`: problems of clock and versions, and join addresses.

        Thread-safe.

        Args:
            head: head of our chain.

        Returns:
            Values by name. "clock" describes the offset of this clock, "versions" counts peers with
            another version of the protocol; None: no problem. "join_address" leads into the run.
            "pinned_address" also names `head`, so that a newcomer joins no chain without it.
        """
        # The entrances of other peers are included: this peer may end before the run does.
        address = with_entrances(self._entrance, self._directory.contacts())
        pinned = with_head(address, head.round, head.digest, self._identity)
        return {
            "clock": self._clock_watch.problem or None,
            "versions": self._other_versions or None,
            "join_address": format_join_address(address),
            "pinned_address": format_join_address(pinned),
        }

    # ---- callbacks, on the transport's and the directory's threads

    def _next_lease(self) -> Lease:
        self._serial += 1
        self._exchange.know(self._own.head, self._clock.now())
        return self._own.lease(self._serial)

    def _take(self, leases: dict[str, Lease]) -> None:
        """Give all leases, which were just read, to the parts that depend on them."""
        others = versions_text(leases.values())
        if others and others != self._other_versions:
            words = "they are ignored until both sides run the same version"
            self._report(f"{others}, this peer runs {PROTOCOL_VERSION}: {words}")
            self._log.emit("other-versions", peers=others)
        self._other_versions = others
        leases = of_our_version(leases)
        self._directory.known = self._own.head.known
        if self._twins.sees(leases.get(self._me.peer_id), self._me):
            self._beside_a_twin()
        self._clock_watch.look(leases, time.time(), self._clock.now())
        self.outreach.know(leases)
        # Not through the queue: a main loop that waits for the disk must not make us blind.
        self._own.training.read(leases)
        self._news.hear(self._clock.now())

    def _beside_a_twin(self) -> None:
        """End this process if it is the later of two with one key; else warn its owner once.

        No service may restart it: the restarted process would be the later one again.
        """
        if self._has_twin:
            return
        self._has_twin = True
        self._log.emit("same-identity")
        if self._clock.now() - self._watching_since <= TWIN_S:
            self._report(IdentityError(TWIN_WORDS, TWIN_HINT))
        else:
            self._report(f"{TWIN_WORDS}; {TWIN_HINT}")


def transport_of(box: Box, member: Membership, inbox: Inbox, storage: RunStorage) -> Transport:
    """Return the transport, which also serves the stored results, states, text and code.

    Args:
        box: this machine's settings and identity.
        member: the run that this peer joined.
        inbox: receiver of messages.
        storage: stored content to serve.
    """
    network = box.peer.network
    bandwidth = Bandwidth(network.upload_bits_per_s, network.download_bits_per_s)
    listed = listed_peers(member.manifest.owner, member.run.swarm.members)
    local = Local(box.identity, member.run_id, box.incarnation, listed)
    known = KnownPeers()
    server = BlobServer(storage.content, known)
    handlers = Handlers(inbox.receive, inbox.unreachable, server.serve)
    place = data_place(network)
    return Transport(local, place, box.events, bandwidth, handlers, known, partial(dialled_by, box))
