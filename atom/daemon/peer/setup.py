"""Entry points of a peer: `atom start` founds or continues a run, `atom join` enters one.

Cheap checks come first, so that a mistake is reported before anything that takes long.

From the lock of the state directory until the peer trains, `Startup` answers the owner's commands.
Reading a text, tracing a large model or fetching code may take minutes. The owner sees the step,
and may pause or end the daemon during that time.
"""

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from atom.base.errors import ControlError
from atom.base.events import EventFan
from atom.config.load import NO_OPTIONS, Options, check_checkpoints
from atom.daemon.console import Console
from atom.daemon.control import ControlServer
from atom.daemon.model.recipe import PRECISIONS, Recipe
from atom.daemon.owner.metrics import Info, open_metrics
from atom.daemon.owner.pauses import put_mark, remove_mark
from atom.daemon.owner.traffic import require_allowance
from atom.daemon.peer.addresses import announced_multiaddrs, data_place, known_contacts
from atom.daemon.peer.box import Box, check_member, open_box
from atom.daemon.peer.founding import enter_run, found_run, run_of
from atom.daemon.peer.heartbeat import DirectoryThread, enter_dht
from atom.daemon.peer.lifecycle import Ending
from atom.daemon.peer.own_code import check_trust, obtain_code
from atom.daemon.peer.peer import Peer
from atom.daemon.state_directory import write_atomically
from atom.plan.devices import require_devices
from atom.swarm.addresses import (
    JoinAddress,
    format_join_address,
    parse_join_address,
    parse_listen,
    parse_multiaddrs,
    with_entrances,
)
from atom.swarm.dht.client import free_port
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.dial_rules import LOCAL, class_of, own_hosts
from atom.swarm.exchange.codec import chunk_kernels
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.manifest import Manifest, listed_peers
from atom.swarm.router.requests import PortRefused
from atom.swarm.transport.listener import data_door
from atom.training.run_optimizer import load_run

__all__ = ["run_join", "run_start"]

MAY_OPEN = "May the home router open two ports while Atom runs, so that other peers can dial it?"
"""Question to an owner whose machine has a private address."""
Agree = Callable[[Recipe, Manifest, Mapping[str, Lease], Box], None]
"""Function that shows what joining means, and raises if the owner of this machine declines."""


_ANSWER_S = 0.5
"""Time for the answer to a request to leave, before the process ends."""


class Startup:
    """Console that remembers the present step, and answers commands while the daemon starts."""

    def __init__(self, box: Box, run: str, address: str) -> None:
        self._console: Console = box.console
        self._state, self._run, self._address = box.state, run, address
        self._step = "preparing"

    # ---- output of the daemon, from any thread

    def join_address(self, address: str) -> None:
        self._console.join_address(address)

    def note(self, text: str) -> None:
        self._step = text
        self._console.note(text)

    def progress(self, what: str, done: int, total: int) -> None:
        self._step = f"{what}, {done / total:.0%}" if total > 1 else what
        self._console.progress(what, done, total)

    def ask(self, question: str, default: bool) -> bool | None:
        return self._console.ask(question, default)

    # ---- commands of the control API, from any thread

    def info(self) -> Mapping[str, Any]:
        """Return the present step, and the figures that are known before the peer exists."""
        return {
            "run": self._run,
            "state": PeerState.STARTING,
            "step": self._step,
            "join_address": self._address,
            "state_directory": str(self._state.root),
        }

    def pause(self) -> str:
        """Pause from the end of the startup on, and return text for the owner."""
        return f"it is starting, and pauses before it trains{put_mark(self._state.paused)}"

    def resume(self) -> str:
        """Remove a pause, and return text for the owner."""
        return f"it trains after its start{remove_mark(self._state.paused)}"

    def reload(self) -> Sequence[Mapping[str, Any]]:
        """Refuse to read the peer file again: a part of it has been applied already."""
        raise ControlError(
            f"the daemon is starting: {self._step}",
            "repeat the command once `atom info` shows a round; or end the daemon with `atom leave`"
            " and start it again",
        )

    def leave(self, deadline_s: float | None) -> str:
        """End the process after the answer: no work is counted yet, and no file is incomplete."""
        threading.Timer(_ANSWER_S, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return "leaving now: it has not begun to train"


def answering(stack: ExitStack, box: Box, run: str, address: str = "") -> tuple[Box, ControlServer]:
    """Answer the owner's commands from now on.

    Args:
        stack: ends the answers, and then unlocks the state directory.
        box: this machine, whose state directory is locked.
        run: name of the run.
        address: join address, if it is known.

    Returns:
        (box whose console also records the current step, server whose target the peer later
            replaces).

    Raises:
        StorageError: the control socket cannot be made.
    """
    stack.callback(box.state.unlock)
    startup = Startup(box, run, address)
    control = ControlServer(startup, box.state)
    control.start()
    stack.callback(control.close)
    return replace(box, console=startup), control


def run_start(
    run_file: Path,
    console: Console,
    peer_file: Path | None = None,
    state: Path | None = None,
    options: Options = NO_OPTIONS,
    initial_peers: Sequence[str] = (),
    weights: Path | None = None,
) -> Ending:
    """Found a run, or continue the one founded in this state directory, and train until it ends.

    Args:
        run_file: path of the run file.
        console: shows messages and progress to the owner.
        peer_file: path of the peer file; None: the one in the state directory, if it exists.
        state: the state directory; None: as the peer file says, or the run's default.
        options: options of the command line that replace keys of the peer file.
        initial_peers: addresses of DHT nodes to enter through; empty: this node is the first.
        weights: folder with weights, or state directory of a run, to begin from; None: the run's
            seed.

    Returns:
        Why the daemon ended.

    Raises:
        UserError: the owner has to change something.
    """
    run = load_run(run_file)
    name, initial = run.run.name, parse_multiaddrs(tuple(initial_peers))
    if "--listen" in options:
        parse_listen(options["--listen"])  # all are checked before any file is written
    box = open_box(name, peer_file, state, console, options)
    with ExitStack() as stack:
        box, control = answering(stack, box, name)
        check_checkpoints(box.peer, run)
        address = JoinAddress(initial, name, box.identity.peer_id)
        box, begin_metrics, thread = _opened(stack, box, address)
        require_devices(box.peer.device.use, PRECISIONS[run.model.precision])
        member = found_run(run, run_file.absolute().parent, box, weights)
        thread.ask(lambda: thread.directory.publish_manifest(member.record))
        entrance = initial or thread.ask(thread.directory.visible_addresses)
        address = replace(address, bootstrap=tuple(entrance[:1]))
        peer = Peer(box, member, thread, address)
        stack.callback(peer.close)
        begin_metrics(hand_over(control, peer, box))
        contacts = thread.directory.contacts()
        console.join_address(format_join_address(with_entrances(address, contacts)))
        if member.code is not None:
            trust = member.code.trust_of(address.owner)
            console.note(f"volunteers who trust your code join with --trust {trust}")
        return peer.run()


def run_join(
    join_address: str,
    console: Console,
    peer_file: Path | None = None,
    state: Path | None = None,
    trust: str | None = None,
    weights: Path | None = None,
    options: Options = NO_OPTIONS,
    agree: Agree = lambda *_: None,
) -> Ending:
    """Join a run by its address, and train until it ends.

    Args:
        join_address: address of the run.
        console: shows messages and progress to the owner.
        peer_file: path of the peer file; None: the one in the state directory, if it exists.
        state: the state directory; None: as the peer file says, or the run's default.
        trust: KEY:SHA256, the owner's peer id and the digest of the owner's code, which may then
            run here; None: no code may.
        weights: folder with the weights that the run began from, to read the frozen ones; None: no
            folder.
        options: options of the command line that replace keys of the peer file.
        agree: shows the owner of this machine what joining means, before the first fetch of state
            or text; it raises if the owner declines. A peer that returns is not asked again.

    Returns:
        Why the daemon ended.

    Raises:
        UserError: the owner has to change something.
    """
    address = parse_join_address(join_address)
    box = open_box(address.run, peer_file, state, console, options)
    with ExitStack() as stack:
        box, control = answering(stack, box, address.run, join_address)
        box, begin_metrics, thread = _opened(stack, box, address)
        manifest, record = thread.ask(thread.directory.read_manifest)
        console.note(f"joining {manifest.run}, founded by {manifest.owner}")
        run = run_of(manifest, box)
        check_trust(manifest.owner, run.model.module_sha256, trust)
        check_checkpoints(box.peer, run)
        listed = listed_peers(manifest.owner, run.swarm.members)
        check_member(listed, manifest.owner, box.identity.peer_id)
        require_devices(box.peer.device.use, PRECISIONS[run.model.precision])
        code = obtain_code(run, manifest, join_address, trust, box, thread)

        def ask_newcomer(recipe: Recipe) -> None:
            if not box.state.chain.exists():
                agree(recipe, manifest, thread.ask(thread.directory.read_leases), box)

        member = enter_run(manifest, record, code, box, weights, ask_newcomer)
        thread.ask(lambda: thread.directory.publish_manifest(member.record))
        entrance = tuple(thread.ask(thread.directory.visible_addresses)[:1]) or address.bootstrap
        ours = replace(address, bootstrap=entrance)
        peer = Peer(box, member, thread, ours)
        stack.callback(peer.close)
        begin_metrics(hand_over(control, peer, box))
        return peer.run(f"others may join through this peer: {format_join_address(ours)}")


def hand_over(control: ControlServer, peer: Peer, box: Box) -> Info:
    """Direct the owner's commands to the peer, and return its function for `atom info`.

    The owner may have paused the daemon, or ended a pause, while it was starting. The peer begins
    in that state.

    Args:
        control: server of the owner's commands, which `Startup` has answered until now.
        peer: the peer, ready to run.
        box: this machine, whose state directory tells whether the daemon is paused.
    """
    control.target = peer
    if box.state.paused.exists():
        peer.pause()
    else:
        peer.resume()
    return peer.info


def _opened(
    stack: ExitStack, box: Box, address: JoinAddress
) -> tuple[Box, Callable[[Info], None], DirectoryThread]:
    """Check what the run needs of this machine, open the port of metrics, and enter the DHT.

    All this comes before a state is built, which may take hours.

    Args:
        stack: closes all that is opened here.
        box: this machine.
        address: address of the run.

    Returns:
        (box whose events reach the metrics, function that starts the metrics, directory).

    Raises:
        PortInUseError: another program uses a port.
        AddressError: this machine cannot listen on the host, or the DHT cannot be reached.
        UserError: another check failed, or the peer file asks for something that cannot be had.
    """
    _raise_file_limit()
    chunk_kernels()  # raises now if they cannot be built, and not only when there is a replica
    network, state = box.peer.network, box.state
    require_allowance(state.traffic, network.per_month_bytes, datetime.now())
    place = data_place(network)
    if place is not None:
        data_door(place).close()
        box = with_open_ports(box, stack)
        network = box.peer.network
    sinks, begin_metrics = open_metrics(box.peer, stack, box.console)
    box = replace(box, entrances=address.bootstrap, events=EventFan(box.events, *sinks))
    opened = box.ports.outside(parse_listen(network.listen).port)
    node = NodeSettings(
        identity_path=str(state.identity),
        listen=network.listen,
        announce=announced_multiaddrs(network.announce, network.listen, opened),
        initial_peers=address.bootstrap,
        contacts=known_contacts(state.known_addresses),
        log_path=str(state.dht_log),
    )
    box.console.progress("entering the DHT", 0, 1)
    thread = enter_dht(address.run, address.owner, node, box.events)
    stack.callback(thread.close)
    box.console.progress("entering the DHT", 1, 1)
    return box, begin_metrics, thread


def with_open_ports(box: Box, stack: ExitStack) -> Box:
    """Ask the router to open this peer's ports, if the owner wants it and it would help.

    The DHT node announces the ports, so this comes before the node starts.

    Args:
        box: this machine.
        stack: closes the ports.

    Returns:
        The same machine, with port numbers that are fixed now if the router opened the ports.
    """
    network, listen = box.peer.network, parse_listen(box.peer.network.listen)
    is_private = class_of(own_hosts(listen.host)[0]) in LOCAL
    if not wants_ports(box, is_private):
        return box
    if not is_private:
        box.console.note("map_ports: the router is not asked: this machine's address is public")
        return box
    listen, data = free_port(listen), free_port(replace(listen, port=network.data_port))
    try:
        opened = box.ports.open((listen.port, data.port))
    except PortRefused as refused:
        box.console.note(f"the router opens no port: {refused.message}")
        return box
    box.ports.start()
    stack.callback(box.ports.close)
    for port in opened:
        leads = f"{port.opened.address} leads to port {port.request.inside} of this machine"
        until = datetime.now() + timedelta(seconds=port.opened.lasts_s)
        leads += f", until {until:%H:%M}, and is renewed while Atom runs"
        box.console.note(f"the router opened a port ({port.protocol}): {leads}")
    fixed = network.model_copy(update={"listen": str(listen), "data_port": data.port})
    peer = box.peer.model_copy(update={"network": fixed})
    return replace(box, peer=peer)


def wants_ports(box: Box, is_private: bool) -> bool:
    """Return True if the owner wants the router to open ports.

    If the settings do not say it, the owner is asked on the terminal. The answer is kept in the
    state directory, so the question is asked once.

    Args:
        box: this machine.
        is_private: True if this machine has a private address; otherwise the question is not asked.
    """
    wish, kept = box.peer.network.map_ports, box.state.map_ports
    answer = kept.read_bytes() if kept.exists() else b""
    if wish is None and answer in (b"yes", b"no"):
        wish = answer == b"yes"
    elif wish is None and is_private:
        wish = box.console.ask(MAY_OPEN, default=False)
        if wish is not None:
            write_atomically(kept, b"yes" if wish else b"no")
    return bool(wish)


def _raise_file_limit() -> None:
    """Raise the limit of open files to the maximum: each stored result that is served is open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
