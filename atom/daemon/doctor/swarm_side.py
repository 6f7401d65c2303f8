"""Looking at a swarm from this box: a DHT node in client mode that publishes nothing."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from atom import __version__
from atom.base.errors import AtomError, UserError
from atom.daemon.doctor.facts import Swarm
from atom.daemon.model.data_check import run_amount
from atom.daemon.own_identity import own_identity
from atom.daemon.peer.invitation import check_member
from atom.swarm.addresses import parse_join_address
from atom.swarm.dht.directory import open_directory
from atom.swarm.dht.p2pd import NodeSettings
from atom.swarm.records.lease import PeerState, Reached
from atom.swarm.records.manifest import Manifest, seen_from_outside

RENEWAL_S = 2.0
"""Between two renewals of a lease: the newest of many is hardly older than its way to us."""
TRAVEL_S = 3.0
NOT_A_PEER = (
    "no peer elsewhere could try it: join, then ask again with --state DIR while the daemon runs"
)
NO_PEER_ID = "it has no peer id yet, `atom id` makes one"
NOT_YET = "no peer of the run has tried yet"
NO_OTHER = "no other peer of the run is there to try"


@dataclass(frozen=True)
class Sight:
    """What was seen of a swarm."""

    swarm: Swarm
    manifest: Manifest | None = None
    offset_s: tuple[float, float] | None = None
    """As `atom.daemon.doctor.facts.Clock` has it."""


async def look(address: str, state: Path) -> Sight:
    """Through the address; `state`: the state directory of a peer that may run here."""
    try:
        parsed = parse_join_address(address)
        node = NodeSettings(initial_peers=parsed.bootstrap, client_mode=True)
        directory = await open_directory(parsed.run, parsed.owner, node)
        try:
            manifest, _ = await directory.read_manifest()
            me = own_identity(state)
            own = None if me is None else me.peer_id
            allowed = seen_from_outside(manifest)
            check_member(allowed, manifest.owner, own or NO_PEER_ID)
            leases = await directory.read_leases()
            now = time.time()
        finally:
            await directory.close()
    except UserError as problem:
        return Sight(Swarm(problem=problem.message, hint=problem.hint))
    except AtomError as problem:
        return Sight(Swarm(problem=str(problem), hint="try again in a moment"))
    alive = {peer: lease for peer, lease in leases.items() if lease.state is not PeerState.LEFT}
    versions = tuple((name, wanted, version_here(name)) for name, wanted in manifest.versions)
    known = {peer: lease.reached for peer, lease in alive.items()}
    reached = reached_of(known, own)
    data = run_amount(manifest)
    seen = Swarm(
        run=manifest.run,
        peers=len(alive),
        only_own=set(alive) == {own},
        versions=versions,
        data="" if data is None else str(data),
        reached=reached,
    )
    ages = [now - lease.issued_at for peer, lease in alive.items() if peer != own]
    return Sight(seen, manifest, clock_offset_s(ages))


def clock_offset_s(ages: list[float]) -> tuple[float, float] | None:
    """Ours minus the others', from how old their leases look: the youngest was made between now
    and a renewal and its way ago. Pure."""
    if not ages:
        return None
    youngest = min(ages)
    return youngest - RENEWAL_S - TRAVEL_S, youngest


def reached_of(alive: Mapping[str, Reached], own: str | None) -> str:
    """What our own peer has found out about itself, if it is alive; else why it is not known."""
    if own is None or own not in alive:
        return NOT_A_PEER
    if alive[own] is not Reached.UNKNOWN:
        return alive[own].value
    return NOT_YET if len(alive) > 1 else NO_OTHER


def version_here(package: str) -> str | None:
    """Without a build's name: 2.13.0+cpu is 2.13.0."""
    if package == "atom-swarm":
        return __version__
    try:
        return metadata.version(package).split("+")[0]
    except metadata.PackageNotFoundError:
        return None
