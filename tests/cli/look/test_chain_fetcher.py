"""A stranger asks real peers for their chain, over TCP."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from atom.base.events import EventFan
from atom.cli.look import onlooker
from atom.cli.look.onlooker import Onlooker
from atom.config.load import normalised_run_text, parse_run_text
from atom.swarm.chain.commit_chain import Share
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Lease
from atom.swarm.records.manifest import Manifest, first_head, manifest_digest, seen_from_outside
from atom.swarm.state.blobs import BlobServer, plain_bytes
from atom.swarm.stream.frames import Pace
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.limits import Handlers
from atom.swarm.transport.transport import Transport
from tests.swarm.chain_samples import a_commit, heads_along, page_of
from tests.swarm.swarm_samples import TINY_RUN, a_lease, a_manifest
from tests.swarm.trickle import Trickle

OWNER, MEMBER = Identity.create(), Identity.create()
FOUNDER_INCARNATION = b"i" * 16
LISTED = TINY_RUN + f'[swarm]\nmembers = ["{MEMBER.peer_id}"]\n'


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def served(
    stack: ExitStack, manifest: Manifest, rounds: int, trickle: Trickle | None = None
) -> Lease:
    """A peer with a chain of so many rounds; its lease."""
    first, commits = first_head(manifest), []
    for _ in range(rounds):
        commits.append(a_commit(heads_along(first, commits)[-1], {OWNER: 8}, [OWNER]))
    head = heads_along(first, commits)[-1]
    pages = {f"chain/{since}": plain_bytes(page_of(commits, since)) for since in range(rounds + 1)}
    listed = seen_from_outside(manifest)
    local = Local(OWNER, manifest_digest(manifest), os.urandom(16), listed)
    serve = BlobServer(pages.get).serve
    handlers = Handlers(on_blobs=trickle.through(serve) if trickle else serve)
    transport = Transport(local, ("127.0.0.1", 0), EventFan(), handlers=handlers)
    transport.start()
    stack.callback(transport.close)
    host, port = transport.address
    return a_lease(
        OWNER.peer_id,
        head=head.digest,
        round=head.round,
        addresses=(f"{host}:{port}",),
    )


def read(
    stack: ExitStack, manifest: Manifest, lease: Lease, asker: Identity | None = None
) -> Onlooker:
    """Return an onlooker that has read the chain of the peer once."""
    directory: Any = None
    looking = Onlooker(directory, manifest, asker, [f"/ip4/127.0.0.1/tcp/1/p2p/{lease.peer_id}"])
    stack.callback(looking.close)
    looking.leases = {lease.peer_id: lease}
    asyncio.run(looking.read())
    return looking


def test_who_never_comes_to_the_end_of_its_chain_is_not_waited_for(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onlooker, "UNCHECKED_PACE", Pace(slack_s=0.5, bytes_per_s=1e9))
    manifest = a_manifest(OWNER, founder_incarnation=FOUNDER_INCARNATION)
    lease = served(stack, manifest, 2, Trickle(100.0, 10))
    looking = read(stack, manifest, lease)
    assert looking.ledger.head.round == 0
    assert "timeout" in looking.problem


def test_listed_peers_answer_each_other_and_a_stranger_is_told_so(stack: ExitStack) -> None:
    text = normalised_run_text(parse_run_text(LISTED))
    manifest = a_manifest(OWNER, founder_incarnation=FOUNDER_INCARNATION, run_file=text)
    lease = served(stack, manifest, 2)
    stranger = read(stack, manifest, lease)
    assert stranger.ledger.head.round == 0
    assert "on the owner's list" in stranger.problem
    assert stranger.shut_out
    ledger = read(stack, manifest, lease, MEMBER).ledger
    assert ledger.head.digest == lease.head
    assert ledger.shares == {OWNER.peer_id: Share(16, 2, 1, 2)}
