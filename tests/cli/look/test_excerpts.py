"""Some lines of what a run trains on, from any peer that has them."""

from pathlib import Path

import pytest
import torch

from atom.base.errors import AddressError
from atom.cli.look import excerpts as module
from atom.cli.look.excerpts import excerpts, fetch_some, some_pieces
from atom.daemon.model.shared_text import open_store
from atom.models.data.tokenizer import ByteTokenizer
from atom.swarm.records.manifest import SharedText, TextFile
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer
from atom.swarm.state.piece_store import text_blob
from tests.swarm.local_transport import LocalNetwork

RAW = b"one line\x1b[2J and\x07 another\n" * 300
CONTENT = {
    "tokenizer": torch.empty(0).byte(),
    "tokens-00": torch.frombuffer(bytearray(RAW), dtype=torch.uint8),
}
TEXT = SharedText(state_digest(CONTENT), 256, 0, (TextFile("uint8", len(RAW), "0" * 64),))


def test_excerpts_are_short_and_harmless(tmp_path: Path) -> None:
    network, store = LocalNetwork(), open_store(TEXT, tmp_path)
    try:
        me = network.add()
        donor = network.add(BlobServer({text_blob(TEXT.digest): CONTENT}.get).serve)
        pieces = some_pieces(TEXT)
        with pytest.raises(AddressError):
            fetch_some(me, store, pieces, [])
        fetch_some(me, store, pieces, [donor.peer_id])
    finally:
        network.close()
    shown = list(excerpts(store, pieces, ByteTokenizer()))
    assert len(shown) == module.PLACES
    for line in shown:
        assert "another one line" in line
        assert line.isprintable()
        assert len(line) <= module.TOKENS
