"""From a command to a running peer: `atom start` founds a run or takes it up, `atom join` enters
one. What can be refused is refused before anything that takes long."""

import contextlib
import resource
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

from atom.base.errors import UserError
from atom.base.events import EventFan
from atom.config.load import check_checkpoints, check_listen, run_from_text
from atom.daemon.console import Console
from atom.daemon.extensions import NO_EXTENSIONS, Extensions, Info
from atom.daemon.model.devices import require_devices
from atom.daemon.model.kept_run import KeptRun
from atom.daemon.model.model_source import trust_value
from atom.daemon.model.recipe import PRECISIONS
from atom.daemon.model.run_optimizer import load_run
from atom.daemon.owner.traffic import require_allowance
from atom.daemon.peer.addresses import (
    announced_multiaddrs,
    data_place,
    known_contacts,
)
from atom.daemon.peer.box import (
    Box,
    JoinOptions,
    StartOptions,
    check_member,
    open_box,
    read_manifest,
)
from atom.daemon.peer.founding import enter_run, found_run, run_of
from atom.daemon.peer.heartbeat import DirectoryThread, enter_dht
from atom.daemon.peer.lifecycle import Ending, ending_note
from atom.daemon.peer.own_code import check_trust, obtain_code
from atom.daemon.peer.peer import Peer
from atom.swarm.addresses import (
    JoinAddress,
    format_join_address,
    parse_join_address,
    parse_listen,
    parse_multiaddrs,
    with_entrances,
)
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.exchange.codec import chunk_kernels
from atom.swarm.records.manifest import listed_peers
from atom.swarm.transport.listener import data_door
from atom.training.storage.run_storage import Snapshot, list_snapshots

__all__ = ["run_join", "run_start"]


def run_start(
    options: StartOptions, console: Console, extensions: Extensions = NO_EXTENSIONS
) -> Ending:
    """Founds (or takes up) a run and trains until it ends. Raises: UserError."""
    run = load_run(options.run_file)
    name, initial = run.run.name, parse_multiaddrs(options.initial_peers)
    if options.listen is not None:
        parse_listen(options.listen)  # as all arguments, before anything is touched
    box = open_box(name, options.peer_file, options.state, console, options.listen)
    with ExitStack() as stack:
        stack.callback(box.state.unlock)
        check_checkpoints(box.peer, run)
        address = JoinAddress(initial, name, box.identity.peer_id)
        if (opened := _opened(stack, box, address, run.run.rounds, extensions)) is None:
            return Ending.ROUNDS_REACHED
        box, begin_monitors, thread = opened
        require_devices(box.peer.device.use, PRECISIONS[run.model.precision])
        member = found_run(options, box, run)
        thread.ask(lambda: thread.directory.publish_manifest(member.record))
        entrance = initial or thread.ask(thread.directory.visible_addresses)
        address = replace(address, bootstrap=tuple(entrance[:1]))
        peer = Peer(box, member, thread, extensions.wishes, address)
        stack.callback(peer.close)
        begin_monitors(peer.info)
        contacts = thread.directory.contacts()
        console.join_address(format_join_address(with_entrances(address, contacts)))
        if member.code is not None:
            trust = trust_value(address.owner, member.code)
            console.note(f"volunteers who trust your code join with --trust {trust}")
        return peer.run()


def run_join(
    options: JoinOptions, console: Console, extensions: Extensions = NO_EXTENSIONS
) -> Ending:
    """Joins a run by its address and trains until it ends. Raises: UserError."""
    address = parse_join_address(options.address)
    box = open_box(address.run, options.peer_file, options.state, console)
    with ExitStack() as stack:
        stack.callback(box.state.unlock)
        if (opened := _opened(stack, box, address, None, extensions)) is None:
            return Ending.ROUNDS_REACHED
        box, begin_monitors, thread = opened
        manifest, record = thread.ask(thread.directory.read_manifest)
        console.note(f"joining {manifest.run}, founded by {manifest.owner}")
        run = run_of(manifest, box)
        check_trust(manifest.owner, run.model.module_sha256, options.trust)
        check_checkpoints(box.peer, run)
        listed = listed_peers(manifest.owner, run.swarm.members)
        check_member(listed, manifest.owner, box.identity.peer_id)
        require_devices(box.peer.device.use, PRECISIONS[run.model.precision])
        code = obtain_code(run, manifest, options, box, thread)
        member = enter_run(manifest, record, code, box, options.weights)
        thread.ask(lambda: thread.directory.publish_manifest(member.record))
        entrance = tuple(thread.ask(thread.directory.visible_addresses)[:1]) or address.bootstrap
        ours = replace(address, bootstrap=entrance)
        peer = Peer(box, member, thread, extensions.wishes, ours)
        stack.callback(peer.close)
        begin_monitors(peer.info)
        return peer.run(f"others may join through this peer: {format_join_address(ours)}")


def _opened(
    stack: ExitStack, box: Box, address: JoinAddress, rounds: int | None, extensions: Extensions
) -> tuple[Box, Callable[[Info], None], DirectoryThread] | None:
    """What a run needs of this machine and of the DHT, closed with the stack: the box that monitors
    hear, what begins them, the directory. None: the run is finished here.
    `rounds`: as of `says_finished`. Raises: UserError."""
    _raise_file_limit()
    chunk_kernels()  # or not at all: said now, and not when there is a replica
    if says_finished(box, address.run, address.owner, rounds):
        return None
    require_allowance(box.state.traffic, box.peer.network.per_month_bytes, datetime.now())
    box = replace(box, entrances=address.bootstrap)
    box, begin_monitors = _at_the_door(stack, box, extensions)
    return box, begin_monitors, _enter_dht(stack, box, address)


def _at_the_door(
    stack: ExitStack, box: Box, extensions: Extensions
) -> tuple[Box, Callable[[Info], None]]:
    """What the peer file asks for and cannot have is said before there is an address or a state:
    making them may take hours. Returns the box that monitors hear, and what begins them.

    Raises: PortInUseError, AddressError, ConfigError, StorageError.
    """
    network = box.peer.network
    check_listen(box.peer, box.listen)
    place = data_place(network, box.listen)
    if place is not None:
        data_door(place).close()
    sinks, begin = extensions.monitors(box.peer, stack, box.console)
    return replace(box, events=EventFan(box.events, *sinks)), begin


def _enter_dht(stack: ExitStack, box: Box, address: JoinAddress) -> DirectoryThread:
    """Closed with the stack. Raises: AddressError, PortInUseError, StorageError."""
    node = NodeSettings(
        identity_path=str(box.state.identity),
        listen=box.listen,
        announce=announced_multiaddrs(box.peer.network.announce, parse_listen(box.listen).port),
        initial_peers=address.bootstrap,
        contacts=known_contacts(box.state.known_addresses),
        log_path=str(box.state.dht_log),
    )
    box.console.progress("entering the DHT", 0, 1, "nodes")
    thread = enter_dht(address.run, address.owner, node, box.events)
    stack.callback(thread.close)
    box.console.progress("entering the DHT", 1, 1, "nodes")
    return thread


def _raise_file_limit() -> None:
    """Every stored result that is offered is an open file: ask for all the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# ---- a run whose last round this peer has


def says_finished(box: Box, name: str, owner: str, rounds: int | None) -> bool:
    """Whether the run of that name (and owner) is kept here with the state after its last round,
    whole; then that is said, and there is nothing to do. Otherwise the peer would enter the DHT,
    trace the model and fill its memory first; and who joins a run that nobody is left in would only
    hear that it cannot be reached. `rounds`: what its run file says, where one is given."""
    try:
        last = _last_state(box, name, owner)
    except UserError:
        return False  # whoever takes the run up mends it, or says what is wrong with it
    if last is None or rounds not in (None, last.round):
        return False  # a run file that was changed is refused, with the reason
    told = {"round": last.round, "head": last.head.hex(), "digest": last.state_digest.hex()}
    box.events.emit("left", ending=Ending.ROUNDS_REACHED.value, **told)
    box.console.note(ending_note(Ending.ROUNDS_REACHED, last.round))
    return True


def _last_state(box: Box, name: str, owner: str) -> Snapshot | None:
    """Raises: UserError for what cannot be used as it is."""
    known = read_manifest(box, name)
    if known is None or owner != known[0].owner:
        return None
    rounds = run_from_text(known[0].run_file).run.rounds
    if rounds not in {snapshot.round for snapshot in list_snapshots(box.state.snapshots)}:
        return None  # seen before a long chain is read
    kept = KeptRun.read(box.state.root, box.console.note)
    last = next((each for each in kept.snapshots() if each.round == rounds), None)
    if last is not None:
        kept.arenas(last)
    return last
