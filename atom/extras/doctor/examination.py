"""All checks of `atom doctor`, in the order in which a person repairs what they find.

The checks of this machine come first, then the checks of the run at an address. The run is read by
a DHT node that publishes nothing.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from atom.base.errors import AtomError, UserError
from atom.base.units import format_bytes
from atom.config.load import load_peer_file
from atom.config.peer_file import PeerFile
from atom.config.places import base_folder, default_state_directory, named_state_directory
from atom.config.sources import text_sources
from atom.daemon.model.pinning import agreed_run
from atom.daemon.model.recipe import open_source, trace_run, version_here
from atom.daemon.model.texts import check_copies, comes_through_the_swarm, total_bytes, what_comes
from atom.daemon.peer.box import check_member, kept_peer
from atom.daemon.state_directory import StateDirectory, own_identity
from atom.extras.doctor import this_box
from atom.extras.doctor.this_box import Finding, failure, ok, unchecked, warning
from atom.models.data.corpus import Amount
from atom.models.source import install_version
from atom.plan.offer import Offer
from atom.plan.planning import require_room
from atom.swarm.addresses import parse_join_address
from atom.swarm.dht.directory import open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.records.lease import Lease, PeerState, Reached
from atom.swarm.records.manifest import Manifest, seen_from_outside

NO_PEER_ID = "no peer id yet; `atom id` creates one"


@dataclass(frozen=True)
class Sight:
    """Manifest and live peers of a swarm, as read from the DHT."""

    manifest: Manifest
    own: str | None
    """Peer id of this machine; None if it has no key yet."""
    alive: Mapping[str, Lease]
    """Lease of each peer that has not left, by peer id."""


async def look(address: str, state: Path) -> Sight | Finding:
    """Read a swarm's manifest and leases from the DHT, without joining.

    Args:
        address: Join address of the run.
        state: State directory, whose peer must be listed if the run has a list.

    Returns:
        The swarm, or the failure that kept it from being read.
    """
    try:
        parsed = parse_join_address(address)
        node = NodeSettings(initial_peers=parsed.bootstrap, client_mode=True)
        directory = await open_directory(parsed.run, parsed.owner, node)
        try:
            manifest, _ = await directory.read_manifest()
            me = own_identity(state)
            own = None if me is None else me.peer_id
            check_member(seen_from_outside(manifest), manifest.owner, own or NO_PEER_ID)
            leases = await directory.read_leases()
        finally:
            await directory.close()
    except AtomError as problem:  # the address is wrong, or the DHT does not answer
        return failure("Swarm", problem.message, problem.hint or "try again in a moment")
    alive = {peer: lease for peer, lease in leases.items() if lease.state is not PeerState.LEFT}
    return Sight(manifest, own, alive)


def swarm(sight: Sight) -> Iterator[Finding]:
    """Yield the findings about live peers, versions, and reachability from outside."""
    yield alive(sight.manifest.run, sight.alive, sight.own)
    yield from versions(sight.manifest.versions)
    yield from_outside({peer: lease.reached for peer, lease in sight.alive.items()}, sight.own)


def alive(run: str, peers: Iterable[str], own: str | None) -> Finding:
    """Report how many peers are alive.

    Args:
        run: Name of the run.
        peers: Peer ids of all live peers.
        own: Peer id of this machine, if it has one.
    """
    found = set(peers)
    if not found:
        fix = "ask its owner whether it continues: atom status ADDRESS"
        return warning("Swarm", f"{run} is known, but no peer is alive", fix)
    if found == {own}:
        return ok("Swarm", f"{run} is reachable; its only live peer is on this machine")
    people = "1 peer is" if len(found) == 1 else f"{len(found)} peers are"
    return ok("Swarm", f"{run} is reachable, {people} alive")


def versions(wanted: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Compare installed packages with the (name, version) pairs of the run's founder."""
    apart = [(name, there) for name, there in wanted if version_here(name) != there]
    for name, there in apart:
        said = f"the run was founded with {name} {there}, here is {version_here(name) or 'none'}"
        yield warning("Versions", said, install_version(name, there))
    if not apart:
        yield ok("Versions", "as on the founder's machine")


def from_outside(reached: Mapping[str, Reached], own: str | None) -> Finding:
    """Report whether other peers can connect to our own peer, as the lease of our daemon says.

    Args:
        reached: Answer of each live peer's lease, by peer id.
        own: Peer id of this machine, if it has one.
    """
    topic = "From outside"
    if own is None or own not in reached:
        return unchecked(topic, "join, then check again with --state DIR while the daemon runs")
    if reached[own] is Reached.YES:
        return ok(topic, "a peer of the run could connect to the data port")
    if reached[own] is Reached.NO:
        fix = 'forward it in the router, or say [network] reachable = "no" in the peer file'
        return warning(topic, "no peer of the run could connect to the data port", fix)
    return unchecked(topic, "no other peer of the run has tried yet")


def data(manifest: Manifest, peer: PeerFile, folder: Path, has_it: bool) -> Finding:
    """Check that the run's data is here or has room here, as far as a quick check can tell.

    Args:
        manifest: Manifest of the run.
        peer: Peer file.
        folder: State directory.
        has_it: True if the data is known to be here: the daemon runs, or this peer founded the run.
    """
    topic = "Data"
    try:
        run = agreed_run(manifest)
        if not has_it and comes_through_the_swarm(run, manifest, peer):
            return ok(topic, what_comes(manifest, StateDirectory(folder).tokens))
        if not has_it:
            check_copies(run, text_sources(run, peer, None))
    except UserError as problem:
        return failure(topic, problem.message, problem.hint)
    return ok(topic, str(Amount(*manifest.data_amount)))


def fit(sight: Sight, peer: PeerFile, folder: Path, trains: bool) -> Iterator[Finding]:
    """Check that the run's model fits into host memory and disk, and how fast it would train.

    Args:
        sight: The swarm.
        peer: Peer file.
        folder: State directory.
        trains: True if its daemon runs already.
    """
    topic, manifest = "This run", sight.manifest
    if trains:
        yield ok(topic, "your daemon trains it: atom info shows its speed")
        return
    try:
        run = agreed_run(manifest)
        if run.model.module is not None:
            said = "unknown: the run's model is code of its owner, which needs --trust"
            yield unchecked(topic, said)
            return
        graph = trace_run(run, open_source(run, None))
        sizes = StateDirectory(folder).room_bytes, total_bytes(manifest.text)
        leases = sight.alive.values()
        offer = Offer.of(run, graph, peer, manifest, leases, sight.own or "", *sizes)
        require_room(offer.plan)
    except UserError as problem:  # the same error would end `atom join`
        yield failure(topic, problem.message, problem.hint)
        return
    host, disk = offer.plan.footprint.host, offer.plan.footprint.disk
    takes = f"{format_bytes(host.total_bytes)} of host memory"
    yield ok(topic, f"fits: {takes}, {format_bytes(disk.total_bytes)} of disk")
    yield ok("Speed", offer.speed)


def examine(
    address: str | None, peer_file: Path | None, state: Path | None, note: Callable[[str], None]
) -> list[Finding]:
    """Run all checks of this machine, and with an address the checks of the run.

    Args:
        address: Join address of a run, if one is to be examined.
        peer_file: Peer file, if the command line names one.
        state: State directory, if the command line names one.
        note: Function that shows which check is under way.

    Raises:
        ConfigError: The peer file cannot be used.
        AddressError: The address is malformed.
    """
    peer, folder = box_of(address, peer_file, state)
    is_ours = StateDirectory(folder).in_use
    note("checking the machine")
    found = [
        this_box.kernels(),
        *this_box.gpus(peer.device, this_box.daemon_runs(folder)),
        this_box.memory(),
        this_box.disk(folder),
        *this_box.ports(peer, is_ours),
        this_box.router(peer),
    ]
    if address is None:
        said = "no address was given: atom doctor ADDRESS checks a swarm as well"
        return [*found, unchecked("Swarm", said)]
    note("looking for the swarm")
    sight = asyncio.run(look(address, folder))
    if isinstance(sight, Finding):
        return [*found, sight]
    found += swarm(sight)
    has_it = is_ours or sight.own == sight.manifest.owner
    found += [data(sight.manifest, peer, folder, has_it)]
    note("estimating whether the run fits")
    return [*found, *fit(sight, peer, folder, is_ours)]


def box_of(
    address: str | None, peer_file: Path | None, state: Path | None
) -> tuple[PeerFile, Path]:
    """Return the peer file and the state directory that `atom join` would use.

    The arguments are the same as for `examine`.

    Raises:
        ConfigError: The peer file cannot be used.
        AddressError: The address is malformed.
    """
    peer = load_peer_file(peer_file)
    run = None if address is None else parse_join_address(address).run
    usual = base_folder("data") if run is None else default_state_directory(run)
    folder = named_state_directory(state, peer.state.directory) or usual
    return (kept_peer(StateDirectory(folder)) if peer_file is None else peer), folder
