"""Reach of a peer: its transport, the directory of the run, and what it tells and learns there."""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from atom.base.clock import Clock
from atom.base.errors import IdentityError
from atom.daemon.peer.addresses import KeptContacts, data_place, dialled_by
from atom.daemon.peer.box import Box
from atom.daemon.peer.founding import Membership
from atom.daemon.peer.heartbeat import DirectoryThread, Heartbeat
from atom.daemon.peer.news import ClockWatch, News
from atom.swarm.addresses import JoinAddress, format_join_address, with_entrances, with_head
from atom.swarm.chain.commit import Head
from atom.swarm.records.lease import (
    PROTOCOL_VERSION,
    Lease,
    Reached,
    TwinWatch,
    of_our_version,
    versions_text,
)
from atom.swarm.records.manifest import lease_key, listed_peers
from atom.swarm.state.blobs import BlobServer
from atom.swarm.stream.bandwidth import Bandwidth
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.lease_exchange import LeaseExchange
from atom.swarm.transport.limits import Handlers, KnownPeers
from atom.swarm.transport.outreach import Outreach
from atom.swarm.transport.transport import Transport
from atom.training.loop import Inbox
from atom.training.storage.disk import DiskRoom
from atom.training.storage.run_storage import RunStorage

if TYPE_CHECKING:
    from atom.daemon.peer.status import Status

TWIN_S = 20.0
"""Seconds after its start in which a process that sees another with its key counts as the later."""
TWIN_WORDS = "another process uses this peer's key, so the swarm cannot rely on either of them"
TWIN_HINT = "end one of them; a second peer needs an empty folder: --state FOLDER"
_REACHABLE = {"auto": Reached.UNKNOWN, "yes": Reached.YES, "no": Reached.NO}


class Reach:
    """Ways between this peer and the swarm. Call its methods on the main thread."""

    def __init__(
        self,
        box: Box,
        member: Membership,
        directory: DirectoryThread,
        storage: RunStorage,
        entrance: JoinAddress,
        clock: Clock,
        report: Callable[[str | BaseException], None],
        news: News,
    ) -> None:
        """Build the parts, and start none.

        Args:
            directory: thread of the run's directory; the caller closes it after this object.
            storage: files that the transport serves.
            entrance: address of the run.
            clock: monotonic clock.
            report: takes lines for the owner, and the failure of a part, which cannot go on.
            news: is told whenever leases were read.
        """
        self._me, self._identity, self._log = box.me, box.identity, box.events
        self._entrance, self._clock, self._report = entrance, clock, report
        self._news = news
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

    def start(self, own: "Status") -> None:
        """Begin to publish leases of `own`, and to read the other peers' leases."""
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
        """Return what `atom info` shows of clocks, versions and addresses. Thread-safe.

        Args:
            head: head of our chain, which the pinned address names.
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
        """Take a reading of all leases."""
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
