"""Weights for somebody who takes no part: whose state is taken, and what of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atom.base.errors import AddressError, PeerRefused
from atom.base.reasons import Reason
from atom.daemon.model.fetched_weights import fetch_weights, newest_offered
from atom.swap.state_form import HIGH, LOW, MASTER
from atom.swarm.state.blobs import BlobServer, plain_bytes
from tests.daemon.model.kept_runs import Folder, folder_in
from tests.daemon.tiny_run import GPT3, LLAMA
from tests.swarm.local_transport import LocalNetwork

OLD, NEW, FORGED = (bytes([n]) * 32 for n in (1, 2, 3))
STATES = {OLD: (4, b"old"), NEW: (8, b"new")}
LAST = '[train]\nwhat = "last-layers"\nlayers = 1'


def offers(peer: str) -> set[bytes]:
    if peer == "absent":
        raise PeerRefused(Reason.UNREACHABLE)
    return {"both": {OLD, NEW}, "late": {OLD}, "liar": {FORGED}, "young": set[bytes]()}[peer]


def test_the_newest_state_is_taken_that_the_chain_vouches_for() -> None:
    found = newest_offered(STATES, ["absent", "liar", "late", "both"], offers)
    assert found == (NEW, ["both"])
    assert newest_offered(STATES, ["late", "liar"], offers) == (OLD, ["late"])
    with pytest.raises(AddressError, match="vouch for: none has one yet") as refused:
        newest_offered(STATES, ["liar", "young"], offers)
    assert "every_rounds" in refused.value.hint
    with pytest.raises(AddressError, match="unreachable"):
        newest_offered(STATES, ["absent"], offers)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with folder_in(tmp_path) as folder:
        yield folder


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    network = LocalNetwork()
    yield network
    network.close()


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (GPT3, ""),
        (f'{LLAMA}\nprecision = "bfloat16"', 'state = "split"'),
        (LLAMA, LAST),
    ],
    ids=["gpt3", "split", "partly frozen"],
)
def test_only_weights_are_fetched_and_once(
    folder: Folder, network: LocalNetwork, model: str, more: str
) -> None:
    member = folder.found(model, more=more)
    replica, manifest = member.replica, member.manifest
    head, state = member.genesis.digest, replica.state_arenas()
    served = {
        "snapshots": plain_bytes(FORGED + head),
        f"state/{head.hex()}": state,
        "frozen": replica.frozen,
    }
    asked = list[str]()

    def find(name: str) -> object:
        asked.append(name)
        return served.get(name)

    donor = network.add(BlobServer(find).serve).peer_id  # type: ignore[arg-type]
    told = list[tuple[int, int]]()
    layout, states = member.recipe.graph.layout, {head: (0, manifest.initial_state_digest)}

    def fetched() -> dict[str, torch.Tensor]:
        told.clear()
        asked.clear()
        round_number, weights = fetch_weights(
            manifest, member.run, layout, states, [donor], network.add(),
            lambda done, total: told.append((done, total)),
        )  # fmt: skip
        assert round_number == 0
        assert {MASTER, HIGH, LOW} >= weights.arenas.keys()
        return {spec.name: weights.value(spec.name, torch.float32) for spec in layout.specs}

    found = fetched()
    for name, value in replica.export_parameters().items():
        assert torch.equal(found[name], value), name
    weights = sum(a.nbytes for n, a in state.items() if n in (MASTER, HIGH, LOW))
    still = sum(arena.nbytes for arena in replica.frozen.values())
    assert {total for _, total in told} == {weights} | ({still} if still else set())
    first = len(asked)
    assert fetched().keys() == found.keys()
    assert all(done == total for done, total in told), "it is all there"
    assert len(asked) <= first

    wrong = replace(manifest, frozen_digest=b"x" * 32) if still else manifest
    with pytest.raises(AddressError, match="no peer gives the state: hash-mismatch"):
        fetch_weights(
            wrong, member.run, layout, states if still else {head: (0, OLD)}, [donor],
            network.add(), lambda done, total: None,
        )  # fmt: skip
