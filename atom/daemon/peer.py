"""The composition root: one peer, from its files to its goodbye. Everything is wired here."""

import contextlib
import json
import resource
from contextlib import ExitStack

from atom.base.clock import BootClock
from atom.base.errors import AddressError
from atom.base.events import EventFan, EventLog, EventSink
from atom.config.run_file import RunFile
from atom.daemon.addresses import announced_multiaddrs, data_addresses
from atom.daemon.box import Box, JoinOptions, StartOptions, open_box
from atom.daemon.console import Console
from atom.daemon.control import ControlServer
from atom.daemon.device_choice import state_form
from atom.daemon.founding import Membership, enter_run, found_run, read_run, run_of
from atom.daemon.gpu import open_gpu
from atom.daemon.invitation import check_member
from atom.daemon.life import Life
from atom.daemon.lifecycle import Ending
from atom.daemon.lookout import Lookout
from atom.daemon.memory_caps import MemoryCaps
from atom.daemon.monitors import Monitors
from atom.daemon.own_code import blob_name, check_trust, obtain_code
from atom.daemon.parts import Parts
from atom.daemon.pauses import Pauses
from atom.daemon.settings import Givers, Settings
from atom.daemon.steward import Observer, Steward
from atom.swarm.addresses import (
    JoinAddress,
    format_join_address,
    parse_join_address,
    parse_listen,
    parse_multiaddrs,
)
from atom.swarm.allow_list import AllowList
from atom.swarm.blobs import BlobServer, BlobShelf
from atom.swarm.chunk_kernels import chunk_kernels
from atom.swarm.codec import CODECS
from atom.swarm.dht_client import DirectoryUnavailable
from atom.swarm.dht_frames import NodeSettings
from atom.swarm.directory import DhtDirectory, open_directory
from atom.swarm.endpoint import TransportLimits
from atom.swarm.handshake import Local
from atom.swarm.outreach import Outreach
from atom.swarm.protection import RingProtection
from atom.swarm.reachability import Reached
from atom.swarm.state_transfer import Watch
from atom.swarm.throttle import Bandwidth
from atom.swarm.transport import Transport
from atom.training.catch_up import FirstState, Replay
from atom.training.disk_room import DiskRoom
from atom.training.donors import PeerDonors
from atom.training.exchange import RingStyle
from atom.training.feedback import Feedback
from atom.training.hands import Bench, ReplicaHands, Schedule
from atom.training.journal import Journal
from atom.training.keeper import Keeper
from atom.training.loop import RoundLoop
from atom.training.results import Results
from atom.training.round import Patience, RoundMachine, Terms
from atom.training.samples import Deck
from atom.training.shelf import Shelf
from atom.training.worker import Work, Worker

DHT_START_S = 180.0
"""More than a node's own patience with slow machines and silent entrances."""
_REACHABLE = {"auto": Reached.UNKNOWN, "yes": Reached.YES, "no": Reached.NO}

__all__ = ["run_join", "run_start"]


def run_start(options: StartOptions, console: Console) -> Ending:
    """Founds (or takes up) a run and trains until it ends. Raises: UserError."""
    _raise_file_limit()
    run = read_run(options)
    initial = parse_multiaddrs(options.initial_peers)
    box = open_box(run.run.name, options.peer_file, options.state)
    with ExitStack() as stack:
        stack.callback(box.state.unlock)
        listen = options.listen or box.peer.network.listen
        events = EventLog(box.state.events)
        node = _node(box, listen, initial)
        owner = box.identity.peer_id
        lookout, directory = _look(stack, events, node, run.run.name, owner)
        member = found_run(options, box, run, console)
        lookout.call(directory.publish_manifest(member.record))
        entrance = initial or lookout.call(directory.visible_addresses())
        address = format_join_address(JoinAddress(tuple(entrance[:1]), run.run.name, owner))
        life = _assemble(stack, box, member, lookout, address, listen, console, events)
        console.join_address(address)
        if member.code is not None:
            console.note(f"volunteers who trust your code join with --trust {owner}")
        return life.live(directory)


def run_join(options: JoinOptions, console: Console) -> Ending:
    """Joins a run by its address and trains until it ends. Raises: UserError."""
    _raise_file_limit()
    address = parse_join_address(options.address)
    box = open_box(address.run, options.peer_file, options.state)
    with ExitStack() as stack:
        stack.callback(box.state.unlock)
        listen = box.peer.network.listen
        events = EventLog(box.state.events)
        node = _node(box, listen, address.bootstrap)
        lookout, directory = _look(stack, events, node, address.run, address.owner)
        manifest, record = lookout.call(directory.read_manifest())
        console.note(f"joining {manifest.run}, founded by {manifest.owner}")
        check_trust(manifest.owner, options.trust)
        run = run_of(manifest, box)
        allowed = AllowList.of(manifest.owner, run.swarm.members)
        check_member(allowed, manifest.owner, box.identity.peer_id)
        code = obtain_code(run, manifest, options, box, lookout, events)
        member = enter_run(manifest, record, code, box, console)
        lookout.call(directory.publish_manifest(member.record))
        entrance = lookout.call(directory.visible_addresses())
        ours = format_join_address(
            JoinAddress(tuple(entrance[:1]) or address.bootstrap, address.run, manifest.owner)
        )
        console.note(f"others may join through this peer: {ours}")
        life = _assemble(stack, box, member, lookout, ours, listen, console, events)
        return life.live(directory)


def _look(
    stack: ExitStack, events: EventLog, node: NodeSettings, run: str, owner: str | None
) -> tuple[Lookout, DhtDirectory]:
    """The directory, open, on the lookout's thread; closed with the stack whatever happens."""
    lookout = Lookout(BootClock(), events)
    stack.callback(lookout.close)
    lookout.start()
    try:
        directory = lookout.call(open_directory(run, owner, node, events), DHT_START_S)
    except (DirectoryUnavailable, TimeoutError) as problem:
        raise AddressError(
            f"the DHT node did not come up: {problem or 'no answer'}",
            f"try again; its own log is {node.log_path}",
        ) from problem
    lookout.attend(directory)
    return lookout, directory


def _raise_file_limit() -> None:
    """Every stored result that is offered is an open file: ask for all the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _node(box: Box, listen: str, initial_peers: tuple[str, ...]) -> NodeSettings:
    return NodeSettings(
        identity_path=str(box.state.identity),
        listen=listen,
        announce=announced_multiaddrs(box.peer.network.announce, parse_listen(listen).port),
        initial_peers=initial_peers,
        contacts=_known_contacts(box),
        log_path=str(box.state.dht_log),
    )


def _known_contacts(box: Box) -> tuple[str, ...]:
    """DHT nodes met in an earlier life; a damaged list is no reason not to start."""
    try:
        listed = json.loads(box.state.known_addresses.read_text(encoding="utf-8"))
        return parse_multiaddrs([str(text) for text in listed][:16])
    except (OSError, ValueError, TypeError):
        return ()


def _assemble(
    stack: ExitStack,
    box: Box,
    member: Membership,
    lookout: Lookout,
    address: str,
    listen: str,
    console: Console,
    log: EventSink,
) -> Life:
    clock, monitors = BootClock(), Monitors(box.peer, stack)
    events = EventFan(log, *monitors.sinks)
    transport = _transport(box, member, listen, events)
    journal = Journal.open(box.state.chain, member.genesis)
    elements = member.replica.gradients.numel()
    results = Results(box.state.results, elements)
    blobs = BlobShelf()
    donors = PeerDonors(
        transport,
        elements,
        state_form(member.run).arenas(),
        box.state.downloads,
        Watch(lambda done, total: console.progress("fetching the state", done, total), events),
    )
    shelf = Shelf(blobs, journal, results)
    room = DiskRoom(box.state.root, events, console.note)
    keeper = Keeper(journal, results, shelf, box.state.snapshots, room, box.peer.state.snapshots)
    first = FirstState(member.manifest.initial_state_digest, member.initialise)
    replay = Replay(member.replica, keeper, donors, first, events)
    deck = Deck(member.samples, box.identity.peer_id)
    if member.code is not None:
        blobs.register(blob_name(member.run), member.code)
    batch = member.run.batch
    life = Life(box.state, console, events, clock, address)
    work = Work(batch.global_sequences, batch.micro_batch_sequences, deck.next_batch, deck.put_back)
    worker = Worker(member.replica, work, clock, life.on_pass, life.on_void, life.fail)
    bench = Bench(member.replica, worker, deck, keeper, replay)
    style = _ring_style(member.run, elements)
    hands = ReplicaHands(bench, transport, _schedule(member), clock, events, style)
    server = BlobServer(blobs, clock, courtesy=transport.courtesy)

    gpu = open_gpu(member.replica.device_hold.torch_device)
    pauses = Pauses(worker, events, console.note, clock)
    look = Observer(gpu, clock).look
    steward = Steward(box.peer.schedule, look, pauses.wish, life.fail)
    memory = MemoryCaps(member.built, worker)
    givers = Givers(gpu, steward, transport.bandwidth, memory, worker.submit)
    settings = Settings(box.peer_place, box.peer, givers)
    settings.start(console.note)

    def make_loop(head_digest: bytes) -> tuple[RoundMachine, RoundLoop]:
        machine = RoundMachine(
            box.me, journal.head, head_digest, _terms(member), box.identity.sign, clock.now()
        )
        loop = RoundLoop(machine, box.me, hands, clock, events, life.fail)
        hands.bind(loop.post, life.on_change)
        transport.set_handlers(loop.receive, loop.unreachable, server.serve)
        return machine, loop

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
        worker=worker,
        pauses=pauses,
        steward=steward,
        settings=settings,
        hands=hands,
        keeper=keeper,
        donors=donors,
        lookout=lookout,
        control=ControlServer(life, box.state.control_socket),
        ended_attempts=monitors.ended_attempts,
        make_loop=make_loop,
    )
    stack.callback(life.close)
    monitors.begin(life.info, console)
    return life


def _transport(box: Box, member: Membership, listen: str, events: EventSink) -> Transport:
    network = box.peer.network
    bind = (parse_listen(listen).host, network.data_port) if network.reachable != "no" else None
    bandwidth = Bandwidth.of(network.upload_bits_per_s, network.download_bits_per_s)
    protection = RingProtection(member.run.swarm.ring_protection)
    allowed = AllowList.of(member.manifest.owner, member.run.swarm.members)
    local = Local(box.identity, member.run_id, box.incarnation, protection, allowed)
    limits = TransportLimits(relay_bytes_per_s=network.relay_bits_per_s / 8)
    return Transport(local, bind, events, limits=limits, bandwidth=bandwidth)


def _ring_style(run: RunFile, elements: int) -> RingStyle:
    """Raises: MemoryError; MismatchError, here and not in a first round, without its kernels."""
    chunk_kernels()
    codec = CODECS[run.swarm.codec]
    feedback = Feedback(elements) if codec.feeds_back else None
    return RingStyle(codec, run.swarm.ring_connections, feedback)


def _schedule(member: Membership) -> Schedule:
    run = member.run
    return Schedule(
        snapshot_rounds=run.snapshot.every_rounds,
        validation_rounds=run.validation.every_rounds if run.validation else None,
        validation_batches=run.validation.batches if run.validation else 0,
        micro_batch=run.batch.micro_batch_sequences,
        sequence_tokens=member.samples.tokens_per_sample,
        last_round=run.run.rounds,
    )


def _terms(member: Membership) -> Terms:
    run = member.run
    return Terms(
        global_batch=run.batch.global_sequences,
        last_round=run.run.rounds,
        branches=run.swarm.survivors == "branch",
        patience=Patience(grace=run.swarm.grace_seconds),
        average_bytes=CODECS[run.swarm.codec].wire_bytes(member.replica.gradients.numel()),
    )
