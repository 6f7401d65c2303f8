"""One peer, from its files to its goodbye; `atom.daemon.peer.assembly` wires its parts."""

import contextlib
import resource
from contextlib import ExitStack
from dataclasses import replace

from atom.base.clock import BootClock
from atom.base.errors import AddressError, PortInUseError
from atom.base.events import EventLog
from atom.config.peer_file import OTHER_PORT
from atom.daemon.console import Console
from atom.daemon.extensions import NO_EXTENSIONS, Extensions, Monitors, Turns
from atom.daemon.peer.addresses import announced_multiaddrs, data_place
from atom.daemon.peer.assembly import Assembly, assemble
from atom.daemon.peer.box import Box, JoinOptions, StartOptions, open_box
from atom.daemon.peer.finished_run import says_finished
from atom.daemon.peer.founding import enter_run, found_run, read_run, run_of
from atom.daemon.peer.invitation import check_member, say_list
from atom.daemon.peer.kept_contacts import known_contacts
from atom.daemon.peer.lifecycle import Ending
from atom.daemon.peer.lookout import Lookout
from atom.daemon.peer.own_code import check_trust, obtain_code
from atom.daemon.peer.slow_joining import round_now, slow_joining
from atom.daemon.usable_memory import more_than_there_is, usable_memory
from atom.swarm.addresses import (
    JoinAddress,
    format_join_address,
    parse_join_address,
    parse_listen,
    parse_multiaddrs,
)
from atom.swarm.dht.client import DirectoryUnavailable
from atom.swarm.dht.directory import Directory, open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.exchange.chunk_kernels import chunk_kernels
from atom.swarm.records.manifest import AllowList
from atom.swarm.transport.listener import listening

DHT_START_S = 180.0
"""More than a node's own patience with slow machines and silent entrances."""

__all__ = ["run_join", "run_start"]


def run_start(
    options: StartOptions, console: Console, extensions: Extensions = NO_EXTENSIONS
) -> Ending:
    """Founds (or takes up) a run and trains until it ends. Raises: UserError."""
    _raise_file_limit()
    chunk_kernels()  # or not at all: said now, and not when there is a replica
    run = read_run(options)
    initial = parse_multiaddrs(options.initial_peers)
    box = open_box(run.run.name, options.peer_file, options.state)
    with ExitStack() as stack:
        stack.callback(box.state.unlock)
        listen = options.listen or box.peer.network.listen
        node = _node(box, listen, initial)
        owner = box.identity.peer_id
        if says_finished(box, run.run.name, owner, run.run.rounds, console):
            return Ending.ROUNDS_REACHED
        monitors = _at_the_door(stack, box, listen, console, extensions)
        say_list(AllowList.of(owner, run.swarm.members), console)
        box, turns = _with_turns(stack, box, run.run.name, owner, console, extensions)
        lookout, directory = _look(stack, box.events, node, run.run.name, owner, console)
        member = found_run(options, box, run, console)
        lookout.ask(lambda: directory.publish_manifest(member.record))
        entrance = initial or lookout.ask(directory.visible_addresses)
        address = format_join_address(JoinAddress(tuple(entrance[:1]), run.run.name, owner))
        parts = (
            box,
            member,
            lookout,
            turns,
            address,
            listen,
            console,
            box.events,
            monitors,
            extensions,
        )
        life = assemble(stack, Assembly(*parts))
        console.join_address(address)
        if member.code is not None:
            console.note(f"volunteers who trust your code join with --trust {owner}")
        return life.live(directory)


def run_join(
    options: JoinOptions, console: Console, extensions: Extensions = NO_EXTENSIONS
) -> Ending:
    """Joins a run by its address and trains until it ends. Raises: UserError."""
    _raise_file_limit()
    chunk_kernels()  # or not at all: said now, and not when there is a replica
    address = parse_join_address(options.address)
    box = open_box(address.run, options.peer_file, options.state)
    with ExitStack() as stack:
        stack.callback(box.state.unlock)
        if says_finished(box, address.run, address.owner, None, console):
            return Ending.ROUNDS_REACHED
        listen = box.peer.network.listen
        monitors = _at_the_door(stack, box, listen, console, extensions)
        node = _node(box, listen, address.bootstrap)
        lookout, directory = _look(stack, box.events, node, address.run, address.owner, console)
        manifest, record = lookout.ask(directory.read_manifest)
        console.note(f"joining {manifest.run}, founded by {manifest.owner}")
        check_trust(manifest.owner, options.trust)
        run = run_of(manifest, box)
        allowed = AllowList.of(manifest.owner, run.swarm.members)
        check_member(allowed, manifest.owner, box.identity.peer_id)
        say_list(allowed, console)
        box, turns = _with_turns(stack, box, address.run, manifest.owner, console, extensions)
        code = obtain_code(run, manifest, options, box, lookout, box.events)
        member = enter_run(manifest, record, code, box, console)
        lookout.ask(lambda: directory.publish_manifest(member.record))
        now = round_now(run, lookout.ask(directory.read_leases).values(), box.identity.peer_id)
        micro_batch_s = member.built.cutter.micro_batch_s
        network, elements = box.peer.network, member.replica.elements
        if words := slow_joining(run, network, elements, micro_batch_s, now):
            console.note(words)
        entrance = lookout.ask(directory.visible_addresses)
        ours = format_join_address(
            JoinAddress(tuple(entrance[:1]) or address.bootstrap, address.run, manifest.owner)
        )
        console.note(f"others may join through this peer: {ours}")
        parts = (box, member, lookout, turns, ours, listen, console, box.events, monitors)
        return assemble(stack, Assembly(*parts, extensions)).live(directory)


def _at_the_door(
    stack: ExitStack, box: Box, listen: str, console: Console, extensions: Extensions
) -> Monitors:
    """What the peer file asks for and cannot have is said before there is an address or a state:
    making them may take hours. Raises: PortInUseError, AddressError, ConfigError, StorageError."""
    network, cap_bytes = box.peer.network, box.peer.host.memory_bytes
    if words := more_than_there_is(cap_bytes, usable_memory().total_bytes):
        console.note(words)
    if network.shares_port(listen):  # of a peer file, which was checked, or of --listen
        raise PortInUseError(
            f"{network.data_port} is data_port and the port of --listen", OTHER_PORT
        )
    place = data_place(network, listen)
    if place is not None:
        listening(place).close()
    return extensions.monitors(box.peer, stack, console)


def _with_turns(
    stack: ExitStack, box: Box, run: str, owner: str, console: Console, extensions: Extensions
) -> tuple[Box, Turns]:
    """The box that waits for its turn before it touches the device."""
    turns = extensions.turns(box.peer.device, box.state.root, run, owner, BootClock())
    stack.callback(turns.close)
    return replace(box, take_device=lambda: turns.begin(console.note)), turns


def _look(
    stack: ExitStack,
    events: EventLog,
    node: NodeSettings,
    run: str,
    owner: str | None,
    console: Console,
) -> tuple[Lookout, Directory]:
    """The directory, open, on the lookout's thread; closed with the stack whatever happens."""
    lookout = Lookout(BootClock(), events)
    stack.callback(lookout.close)
    lookout.start()
    console.progress("entering the DHT", 0, 1, "nodes")
    try:
        directory = lookout.call(open_directory(run, owner, node, events), DHT_START_S)
    except (DirectoryUnavailable, TimeoutError) as problem:
        raise AddressError(
            f"the DHT node did not come up: {str(problem) or 'no answer'}",
            f"try again; its own log is {node.log_path}",
        ) from problem
    console.progress("entering the DHT", 1, 1, "nodes")
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
        contacts=known_contacts(box.state.known_addresses),
        log_path=str(box.state.dht_log),
    )
