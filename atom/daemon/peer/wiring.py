"""Constructors of those parts of a peer that need more than one call. They start nothing."""

from functools import partial

from atom.base.clock import Clock
from atom.base.events import EventSink
from atom.daemon.model.shared_text import content_of
from atom.daemon.peer.addresses import data_place, dialled_by
from atom.daemon.peer.box import Box
from atom.daemon.peer.founding import Membership
from atom.daemon.peer.own_code import blob_name
from atom.swarm.addresses import RecentHead
from atom.swarm.exchange.codec import Codec
from atom.swarm.records.manifest import listed_peers
from atom.swarm.state.blobs import BlobServer, Content, plain_bytes
from atom.swarm.state.fetch import Watch
from atom.swarm.state.piece_store import PieceStore, text_blob
from atom.swarm.stream.bandwidth import Bandwidth
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.limits import Handlers, KnownPeers, offend
from atom.swarm.transport.transport import Transport
from atom.training.loop import Inbox
from atom.training.peer_donors import PeerDonors
from atom.training.recovery import Recovery
from atom.training.round import RoundPatience, RoundTerms
from atom.training.shared_state import FirstState, SharedState
from atom.training.storage.disk import DiskRoom
from atom.training.storage.results import Results
from atom.training.storage.run_storage import Journal, RunStorage


def round_terms(member: Membership, codec: Codec) -> RoundTerms:
    """Return the run's rules for rounds, as the round machine needs them."""
    run = member.run
    return RoundTerms(
        run.batch.global_sequences,
        last_round=run.run.rounds,
        branches=run.swarm.survivors == "branch",
        patience=RoundPatience(grace=run.swarm.grace_seconds),
        average_bytes=codec.wire_bytes(member.replica.elements),
        ring_possible=codec.fixed_size,
    )


def run_storage(box: Box, member: Membership, codec: Codec, events: EventSink) -> RunStorage:
    """Return the storage of chain, results and snapshots in the state directory.

    It also offers other peers the run's own code and its text, if the run has them.

    Raises:
        StorageError: the chain on disk is damaged, or belongs to another run.
    """
    results = Results(box.state.results, member.replica.elements, codec)
    journal = Journal(box.state.chain, member.genesis)
    room = DiskRoom(box.state.root, events, box.console.note)
    given: dict[str, Content | PieceStore] = {}
    if member.code is not None:
        given[blob_name(member.run)] = plain_bytes(member.code.content)
    if (text := member.manifest.text) is not None:
        given[text_blob(text.digest)] = member.text or content_of(member.samples)
    keep = box.peer.state.snapshots
    return RunStorage(journal, results, box.state.snapshots, room, keep, given)


def transport_of(
    box: Box, member: Membership, events: EventSink, inbox: Inbox, storage: RunStorage
) -> Transport:
    """Return the transport, which also serves the stored results, states, text and code."""
    network = box.peer.network
    bandwidth = Bandwidth(network.upload_bits_per_s, network.download_bits_per_s)
    listed = listed_peers(member.manifest.owner, member.run.swarm.members)
    local = Local(box.identity, member.run_id, box.incarnation, listed)
    known = KnownPeers()
    server = BlobServer(storage.content, known)
    handlers = Handlers(inbox.receive, inbox.unreachable, server.serve)
    place = data_place(network, box.listen)
    dialled = partial(dialled_by, network, box.listen, box.entrances)
    return Transport(local, place, events, bandwidth, handlers, known, dialled)


def recovery_of(
    box: Box,
    member: Membership,
    events: EventSink,
    transport: Transport,
    storage: RunStorage,
    clock: Clock,
    pinned: RecentHead | None,
) -> tuple[SharedState, Recovery]:
    """Return the peer's state, and the part that fetches a state from other peers.

    Args:
        clock: monotonic clock.
        pinned: head that the join address names; None: the address names none.
    """
    donors = PeerDonors(
        transport,
        storage.results.usual_bytes,
        sum(arena.size_bytes for arena in member.replica.state_form.values()),
        box.state.downloads,
        Watch(
            lambda done, total: box.console.progress("fetching the state", done, total),
            events,
            lambda peer, reason: offend(transport.offenders, peer, reason, clock.now()),
        ),
    )
    shared = SharedState(
        box.me,
        member.replica,
        storage,
        FirstState(
            member.manifest.initial_state_digest,
            member.initialise,
            member.manifest.frozen_digest,
            member.fill_frozen,
        ),
        events,
        donors.stop,
        lambda done, total: box.console.progress("replaying missed rounds", done, total, "rounds"),
    )
    return shared, Recovery(shared, donors, events, pinned)
