"""Weights for somebody who takes no part: whose state is taken, and what of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atom.base.errors import AddressError, PeerRefused
from atom.base.reasons import Reason
from atom.daemon.model.fetched_weights import fetch_weights, newest_offered
from atom.daemon.model.kept_run import HeldWeights
from atom.swap.state_form import HIGH, LOW, MASTER
from atom.swarm.state.arenas import state_digest
from atom.swarm.state.blobs import BlobServer, plain_bytes
from atom.swarm.state.part_rows import LOADED, Row, table_of
from tests.daemon.model.kept_runs import Folder, folder_in
from tests.daemon.tiny_run import GPT3, LLAMA
from tests.swarm.local_transport import LocalNetwork
from tests.training.replicas_in_parts import cut_fine

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


@pytest.mark.parametrize(
    ("precision", "state"), [("float32", "exact"), ("bfloat16", "exact"), ("bfloat16", "split")]
)
def test_of_a_state_in_parts_what_is_loaded_is_fetched_part_by_part(
    folder: Folder,
    network: LocalNetwork,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    state: str,
) -> None:
    """By the digests of the newest round's table. What came is not asked for again."""
    cut_fine(monkeypatch)
    more = f'state = "{state}"\n[update]\noptimizer_state = "parts"'
    member = folder.found(f'{GPT3}\nprecision = "{precision}"', more=more)
    replica, layout = member.replica, member.recipe.graph.layout
    count = replica.parts.held.parts.count
    loaded = [{LOADED: replica.parts.state(part)[0].clone()} for part in range(count)]
    rows = tuple(Row(OLD, state_digest(each), NEW) for each in loaded)
    table = state_digest(table_of(rows))
    contents = {state_digest(each): each for each in (table_of(rows), *loaded)}
    served = {f"result/{name.hex()}": content for name, content in contents.items()}
    absent = [served.popitem()]
    asked = list[str]()

    def find(name: str) -> object:
        asked.append(name)
        return served.get(name)

    donor, me = network.add(BlobServer(find).serve).peer_id, network.add()  # type: ignore[arg-type]

    def fetched(states: dict[bytes, tuple[int, bytes]]) -> tuple[int, HeldWeights]:
        return fetch_weights(
            member.manifest, member.run, layout, states, [donor], me, lambda done, total: None
        )

    with pytest.raises(AddressError, match="no round of the run is decided yet"):
        fetched({})
    with pytest.raises(AddressError, match="no peer gives the state: not-found"):
        fetched({NEW: (5, table)})
    served.update(absent)
    asked.clear()
    round_number, weights = fetched({NEW: (5, table)})
    assert round_number == 5
    assert set(asked) == {absent[0][0]}
    dtype = getattr(torch, precision)
    for name, value in replica.export_parameters().items():
        assert torch.equal(weights.value(name, dtype), value.to(dtype)), name
    asked.clear()
    fetched({NEW: (5, table)})
    assert not asked
