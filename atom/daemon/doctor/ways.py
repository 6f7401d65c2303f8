"""The ways from this box to peers of a run: how fast they are, where their far ends see us, and
whether they can dial us there."""

import os
import random
from collections.abc import Mapping

from atom.base.errors import PeerRefused, UserError
from atom.base.events import EventList
from atom.config.load import run_from_text
from atom.config.peer_file import PeerFile
from atom.daemon.doctor.facts import Way, Ways
from atom.daemon.doctor.nat import host_of, outward
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease, Reached
from atom.swarm.records.manifest import AllowList, Manifest, manifest_digest
from atom.swarm.stream.handshake import Local
from atom.swarm.stream.protection import RingProtection
from atom.swarm.stream.throttle import Bandwidth
from atom.swarm.transport.endpoint import TransportLimits
from atom.swarm.transport.outreach import contact_of
from atom.swarm.transport.transport import Transport

WANTED = 2
"""Ways: two far ends tell what a router does with one port."""
MOST_ASKED = 5
NOBODY = "no peer of the run can be dialled"
NO_OTHER = "no other peer of the run takes connections"


def find_ways(
    manifest: Manifest,
    alive: Mapping[str, Lease],
    own: Identity | None,
    peer: PeerFile,
    door: tuple[str, int] | None,
) -> Ways:
    """Takes seconds, and some MB of each of the peers. `alive`: leases by peer id; `door`: host and
    port to be dialled at meanwhile, if nobody listens there."""
    caps = (peer.network.upload_bits_per_s, peer.network.download_bits_per_s)
    try:
        transport = _transport(manifest, own or Identity.create(), Bandwidth.of(*caps), door)
    except UserError as newer:  # than this version
        return Ways(newer.message, *caps)
    asked = _in_turn(alive, "" if own is None else own.peer_id)
    found, problem = list[Way](), NOBODY if asked else NO_OTHER
    try:
        transport.start()
        for peer_id in asked[:MOST_ASKED]:
            transport.set_contact(peer_id, contact_of(alive[peer_id]))
            try:
                gauged, near = transport.gauge(peer_id)
            except (PeerRefused, OSError) as failure:
                problem = f"…{peer_id[-6:]}: {failure}"
                continue
            rates = (gauged.upload_bytes_per_s, gauged.download_bytes_per_s)
            # Our end has an address that the peer listens on only if both are here.
            same_box = host_of(near) in {*map(host_of, alive[peer_id].addresses)} - {""}
            reached = gauged.reached.value
            found.append(Way(peer_id, *rates, near, gauged.seen, same_box, reached))
            if sum(not way.same_box for way in found) == WANTED:
                break
    finally:
        transport.close()
    return Ways("" if found else problem, *caps, tuple(found))


def _in_turn(alive: Mapping[str, Lease], own: str) -> list[str]:
    """Any order, so that nobody is asked by everybody; first those that others have reached."""
    able = [peer for peer, lease in alive.items() if lease.addresses and peer != own]
    random.shuffle(able)
    return sorted(able, key=lambda peer: alive[peer].reached is not Reached.YES)


def reached_by(ways: Ways, before: str) -> str:
    """Whether this box can be dialled: what its own peer knows, by `before`; else what those found
    that were asked to dial it. Pure."""
    told = (Reached.YES.value, Reached.NO.value)
    if before in told:
        return before
    answers = [way.reached for way in outward(ways) if way.reached in told]
    return min(answers, key=told.index, default=before)


def _transport(
    manifest: Manifest, identity: Identity, bandwidth: Bandwidth, door: tuple[str, int] | None
) -> Transport:
    """Raises: ConfigError for a run file that is not understood."""
    run = run_from_text(manifest.run_file)
    allowed = AllowList.of(manifest.owner, run.swarm.members)
    protection = RingProtection(run.swarm.ring_protection)
    local = Local(identity, manifest_digest(manifest), os.urandom(16), protection, allowed)
    limits = TransportLimits(from_one_port=True)
    return Transport(local, door, EventList(), limits=limits, bandwidth=bandwidth)
