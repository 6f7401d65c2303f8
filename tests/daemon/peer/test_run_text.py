"""Fetching a run's text from the peers that are there, and training on the pieces that arrived."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atom.daemon.model.texts import content_of
from atom.daemon.peer.founding import Membership, enter_run
from atom.daemon.peer.training import RunText
from atom.models.data.samples import PiecesMissing
from atom.models.data.tokenizer import byte_level_tokenizer
from atom.swarm.records.lease import PeerState
from atom.swarm.state import piece_feed
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.piece_store import text_blob
from atom.swarm.transport.transport import Transport
from atom.training.storage.disk import DiskRoom
from tests.daemon.model.kept_runs import Folder, folder_in
from tests.daemon.tiny_run import GPT3, TEXT
from tests.event_list import EventList
from tests.manual_clock import ManualClock
from tests.swarm.local_transport import LocalNetwork
from tests.swarm.swarm_samples import a_lease

SOON = 20.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "tokenizer.json").write_text(byte_level_tokenizer())
    with folder_in(tmp_path) as folder:
        yield folder


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    network = LocalNetwork()
    yield network
    network.close()


class Joiner:
    """Joiner that has only the run's manifest."""

    def __init__(self, folder: Folder, founder: Membership, me: Transport) -> None:
        box = folder.box("joiner", "")
        member = enter_run(founder.manifest, founder.record, None, box)
        assert member.text is not None
        samples, store = member.samples, member.text
        self.kept_tokenizer, self.failures = box.state.tokenizer, list[BaseException]()
        self.ready, events, clock = threading.Event(), EventList(), ManualClock()
        room, fail = DiskRoom(folder.root, events), self.failures.append
        self.text = RunText(box, samples, store, me, room, clock, self.ready.set, fail)

    def await_ready(self) -> None:
        assert self.ready.wait(SOON)
        self.ready.clear()


def test_samples_are_read_once_their_pieces_are_here(
    folder: Folder, network: LocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_feed, "_PLAN_S", 0.0)
    data = f'{TEXT}\nvalidation_fraction = 0.2\ntokenizer = "tokenizer.json"'
    founder = folder.found(GPT3, data=data)
    assert founder.manifest.text is not None
    name = text_blob(founder.manifest.text.digest)
    donor = network.add(BlobServer({name: content_of(founder.samples)}.get).serve)
    joiner = Joiner(folder, founder, network.add())
    text = joiner.text
    with pytest.raises(PiecesMissing):
        text.samples.batch([0, 5])
    text.start()
    try:
        lease = a_lease(donor.peer_id)
        text.look({donor.peer_id: replace(lease, state=PeerState.LEFT)}, founder.genesis)
        assert not joiner.ready.wait(0.0)
        text.look({donor.peer_id: lease}, founder.genesis)
        joiner.await_ready()
        ours, theirs = text.samples.batch([0, 5]), founder.samples.batch([0, 5])
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
        while not joiner.kept_tokenizer.exists():
            assert not joiner.failures
        assert joiner.kept_tokenizer.read_bytes() == founder.samples.tokenizer_json
        figures = text.figures()
        assert figures["kept_bytes"] == figures["total_bytes"] > 0
        assert text.why_waiting == ""
    finally:
        text.close()
    assert not joiner.failures
