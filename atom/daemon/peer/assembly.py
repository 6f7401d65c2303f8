"""A peer's parts, from its run, its box and its directory: everything is wired here."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from atom.base.clock import BootClock, Clock
from atom.base.events import EventFan, EventSink
from atom.config.run_file import RunFile
from atom.daemon.console import Console
from atom.daemon.control import ControlServer
from atom.daemon.extensions import Extensions, Monitors, Turns, Wishes
from atom.daemon.fitting.memory_caps import MemoryCaps
from atom.daemon.owner.pauses import PauseMark, Pauses
from atom.daemon.owner.settings import Givers, Settings
from atom.daemon.peer.addresses import data_addresses, data_place
from atom.daemon.peer.box import Box
from atom.daemon.peer.ended_attempts import EndedAttempts
from atom.daemon.peer.founding import Membership
from atom.daemon.peer.life import Life
from atom.daemon.peer.lookout import Lookout
from atom.daemon.peer.own_code import blob_name
from atom.daemon.peer.parts import Parts
from atom.swarm.exchange.chunk_kernels import chunk_kernels
from atom.swarm.exchange.codec import Codec, codec_named
from atom.swarm.records.lease import Reached
from atom.swarm.records.manifest import AllowList
from atom.swarm.state.blobs import BlobServer, BlobStore, plain_bytes
from atom.swarm.state.fetch import Watch
from atom.swarm.stream.bandwidth import Bandwidth
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.limits import Handlers, KnownPeers
from atom.swarm.transport.outreach import Outreach
from atom.swarm.transport.transport import Transport
from atom.training.loop import Inbox, RoundLoop
from atom.training.replica.worker import BatchLoader, Worker
from atom.training.round import BATCH_POLICIES, DEFAULT_POLICY, Patience, RoundMachine, Terms
from atom.training.round_executor import RoundExecutor, TrainingContext
from atom.training.state_sync import FirstState, PeerDonors, StateSync
from atom.training.storage.disk import DiskRoom
from atom.training.storage.run_storage import Journal, Results, RunStorage

_REACHABLE = {"auto": Reached.UNKNOWN, "yes": Reached.YES, "no": Reached.NO}


@dataclass(frozen=True)
class Assembly:
    """What a peer is put together from."""

    box: Box
    member: Membership
    lookout: Lookout
    turns: Turns
    address: str
    """By which others join."""
    listen: str
    console: Console
    log: EventSink
    monitors: Monitors
    extensions: Extensions


@dataclass(frozen=True)
class _Base:
    """What every side works with, and tells."""

    given: Assembly
    clock: Clock
    events: EventSink
    transport: Transport
    life: Life


@dataclass(frozen=True)
class _ReplicaSide:
    """The model, what computes with it, and what of the run is kept."""

    context: TrainingContext
    donors: PeerDonors


@dataclass(frozen=True)
class _OwnerSide:
    """What the machine's owner wishes, and who sees to it."""

    pauses: Pauses
    wishes: Wishes
    settings: Settings


def assemble(stack: ExitStack, given: Assembly) -> Life:
    """Nothing is started; closed with the stack. Raises: UserError."""
    box, member, monitors, clock = given.box, given.member, given.monitors, BootClock()
    ended_attempts, inbox = EndedAttempts(), Inbox()
    events = EventFan(given.log, ended_attempts, *monitors.sinks)
    storage = _storage(given, events)
    transport = _transport(given, events, inbox, storage)
    life = Life(box.state, given.console, events, clock, given.address)
    base = _Base(given, clock, events, transport, life)
    replica = _replica_side(base, storage)
    context = replica.context
    executor = RoundExecutor(
        context, member.run, _codec(member.run), inbox.put, life.on_round_begun
    )
    owner = _owner_side(base, replica.context.worker)
    life.parts = Parts(
        me=box.me,
        member=member,
        transport=transport,
        outreach=Outreach(transport, _REACHABLE[box.peer.network.reachable], clock, events),
        data_addresses=lambda: (
            data_addresses(box.peer.network.announce, transport.address)
            if transport.listens
            else ()
        ),
        worker=replica.context.worker,
        pauses=owner.pauses,
        wishes=owner.wishes,
        settings=owner.settings,
        executor=executor,
        storage=replica.context.storage,
        donors=replica.donors,
        turns=given.turns,
        lookout=given.lookout,
        control=ControlServer(life, box.state.control_socket),
        ended_attempts=ended_attempts,
        make_loop=_loop_maker(base, replica, executor, inbox),
    )
    stack.callback(life.close)
    monitors.begin(life.info)
    return life


def _replica_side(base: _Base, storage: RunStorage) -> _ReplicaSide:
    box, member, life = base.given.box, base.given.member, base.life
    donors = _donors(base, storage.results)
    batch = member.run.batch
    loader = BatchLoader(member.samples, box.identity.peer_id, batch.micro_batch_sequences)
    policy = BATCH_POLICIES[DEFAULT_POLICY](batch.global_sequences)
    tells = life.on_pass, life.on_void, life.fail
    worker = Worker(member.replica, loader, policy, base.clock, *tells)
    state_sync = _state_sync(base, storage, donors)
    context = TrainingContext(
        box.me, member.replica, worker, storage, state_sync, base.transport, base.clock,
        base.events,
    )  # fmt: skip
    return _ReplicaSide(context, donors)


def _storage(given: Assembly, events: EventSink) -> RunStorage:
    box, member = given.box, given.member
    codec = codec_named(member.run.swarm.codec)
    results = Results(box.state.results, member.replica.elements, codec)
    journal = Journal(box.state.chain, member.genesis)
    room = DiskRoom(box.state.root, events, given.console.note)
    return RunStorage(journal, results, box.state.snapshots, room, box.peer.state.snapshots)


def _donors(base: _Base, results: Results) -> PeerDonors:
    box, member, console = base.given.box, base.given.member, base.given.console
    return PeerDonors(
        base.transport,
        results.usual_bytes,
        sum(arena.size_bytes for arena in member.replica.state_form.values()),
        box.state.downloads,
        Watch(
            lambda done, total: console.progress("fetching the state", done, total),
            base.events,
            lambda peer, reason: base.transport.quarantine.offend(peer, reason, base.clock.now()),
        ),
    )


def _state_sync(base: _Base, storage: RunStorage, donors: PeerDonors) -> StateSync:
    member, console = base.given.member, base.given.console
    return StateSync(
        base.given.box.me,
        member.replica,
        storage,
        donors,
        FirstState(member.manifest.initial_state_digest, member.initialise),
        base.events,
        lambda done, total: console.progress("replaying missed rounds", done, total, "rounds"),
    )


def _owner_side(base: _Base, worker: Worker) -> _OwnerSide:
    """Their wishes hold from here on."""
    given, box, member = base.given, base.given.box, base.given.member
    pauses = Pauses(worker.gate, base.events, PauseMark(box.state.paused))
    device = member.replica.engines.torch_device
    wishes = given.extensions.wishes(box.peer, device, pauses.wish, base.life.fail)
    memory = MemoryCaps(member.built, worker)
    bandwidth = base.transport.bandwidth
    givers = Givers(wishes, given.turns, bandwidth, memory, worker.submit)
    return _OwnerSide(pauses, wishes, Settings(box.peer_place, box.peer, givers))


def _loop_maker(
    base: _Base, replica: _ReplicaSide, executor: RoundExecutor, inbox: Inbox
) -> Callable[[bytes], tuple[RoundMachine, RoundLoop]]:
    """What begins to take part in rounds, from the state whose digest it is given."""
    box, member, life, context = base.given.box, base.given.member, base.life, replica.context

    def make_loop(head_digest: bytes) -> tuple[RoundMachine, RoundLoop]:
        head, sign, now = context.storage.journal.head, box.identity.sign, base.clock.now()
        machine = RoundMachine(box.me, head, head_digest, _terms(member), sign, now)
        tells = executor.carry_out, inbox, life.on_change, life.fail
        return machine, RoundLoop(machine, context, *tells)

    return make_loop


def _transport(given: Assembly, events: EventSink, inbox: Inbox, storage: RunStorage) -> Transport:
    box, member, network = given.box, given.member, given.box.peer.network
    bandwidth = Bandwidth(network.upload_bits_per_s, network.download_bits_per_s)
    allowed = AllowList.of(member.manifest.owner, member.run.swarm.members)
    local = Local(box.identity, member.run_id, box.incarnation, allowed)
    code = {} if member.code is None else {blob_name(member.run): plain_bytes(member.code)}
    blobs, known = BlobStore(lambda name: code.get(name) or storage.content(name)), KnownPeers()
    server = BlobServer(blobs, known, bandwidth.throttle)
    handlers = Handlers(inbox.receive, inbox.unreachable, server.serve)
    place = data_place(network, given.listen)
    return Transport(local, place, events, bandwidth=bandwidth, handlers=handlers, known=known)


def _codec(run: RunFile) -> Codec:
    """Raises: MismatchError, here and not in a first round, without its kernels."""
    chunk_kernels()
    return codec_named(run.swarm.codec)


def _terms(member: Membership) -> Terms:
    run = member.run
    return Terms(
        BATCH_POLICIES[DEFAULT_POLICY](run.batch.global_sequences),
        last_round=run.run.rounds,
        branches=run.swarm.survivors == "branch",
        patience=Patience(grace=run.swarm.grace_seconds),
        average_bytes=codec_named(run.swarm.codec).wire_bytes(member.replica.elements),
        ring_possible=codec_named(run.swarm.codec).fixed_size,
    )
