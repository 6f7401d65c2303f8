"""Attack: strangers, or one member, send messages as fast as the line allows."""

import contextlib
import threading

from atom.swarm.stream.bandwidth import Rate
from atom.swarm.stream.frames import Channel, Kind, Patience
from atom.swarm.transport.limits import FairShare, KnownPeers
from tests.swarm.transport_peers import SOON, Make, newcomer, shake, until

FLOODERS, EACH = 24, 4
LARGE = bytes(200_000)


def flood(channel: Channel) -> None:
    with contextlib.suppress(OSError):
        for _ in range(EACH):
            channel.send_frame(Kind.MESSAGE, LARGE, patience=Patience(60.0))


def test_a_newcomer_and_a_voter_are_heard_while_strangers_flood(
    make_peer: Make,
) -> None:
    """The flood takes over two minutes at the rate of all strangers."""
    peer, voter = make_peer(HANDSHAKE_S=60.0), newcomer()
    peer.transport.known.at_head([voter.identity.peer_id])
    crowd = [shake(peer, newcomer()) for _ in range(FLOODERS)]
    threads = [threading.Thread(target=flood, args=(each,)) for each in crowd]
    for thread in threads:
        thread.start()
    until(lambda: peer.transport.bandwidth.received_bytes > FLOODERS * len(LARGE))
    heard = [peer.heard.get(timeout=SOON)]
    sent = {"promise": newcomer(), "vote": voter}
    for text, local in sent.items():
        with contextlib.closing(shake(peer, local)) as channel:
            channel.send_frame(Kind.MESSAGE, text.encode(), patience=Patience(SOON))
            while heard[-1][2] != text.encode():
                heard.append(peer.heard.get(timeout=SOON))
    assert len(heard) < FLOODERS, "no sender of the flood is served first"
    for channel in crowd:
        channel.close()
    for thread in threads:
        thread.join(SOON)


def test_each_peer_has_a_rate_and_a_stranger_pays_for_its_own_flood_only() -> None:
    known = KnownPeers()
    known.at_head(["voter", "member"])
    share = FairShare(known, Rate(100.0, 200.0), Rate(1.0, 4.0), Rate(10.0, 50.0))
    assert share.wait_s("member", 1200.0, 0.0) == 10.0, "a member has a rate, too"
    assert share.wait_s("voter", 200.0, 0.0) == 0.0, "and another member one of its own"
    assert share.wait_s("flood", 50.0, 0.0) == 0.0
    assert [share.wait_s("flood", 50.0, 0.0) for _ in range(3)] == [5.0, 10.0, 15.0]
    assert share.wait_s("newcomer", 4.0, 0.0) == 0.0
    assert share.wait_s("newcomer", 4.0, 0.0) == 4.0, "sooner by its own rate than by the pool"
    assert share.wait_s("newcomer", 4.0, 8.0) == 0.0
    assert share.wait_s("voter", 100.0, 1.0) == 0.0


def test_a_peer_that_is_refused_owes_nothing() -> None:
    share = FairShare(KnownPeers(), Rate(1.0, 1.0), Rate(1.0, 2.0), Rate(1.0, 1.0))
    assert [share.allow("flood", 0.0) for _ in range(5)] == [True] * 3 + [False] * 2, (
        "the pool, too"
    )
    assert share.allow("flood", 1.0)


def test_more_peers_than_can_be_remembered_cost_no_more_memory() -> None:
    share = FairShare(KnownPeers(), Rate(1.0, 1.0), Rate(1.0, 1.0), Rate(1.0, 1.0))
    for number in range(10_000):
        share.wait_s(f"stranger {number}", 1.0, 0.0)
    assert len(share._own) == 4096
