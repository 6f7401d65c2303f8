"""A run whose optimizer's state is in parts begins with one peer, which has all of it."""

from pathlib import Path
from typing import Any

import pytest

from atom.base.errors import ShortageError
from atom.daemon.fitting import building, device_choice
from atom.daemon.fitting.device_choice import (
    most_held,
    peer_bytes,
    replica_arenas,
    result_bytes,
)
from atom.daemon.peer.lifecycle import Ending
from atom.training.storage.parts_results import PartsResult, PartsResults
from tests.daemon.model.kept_runs import folder_in
from tests.daemon.peer.small_peer import Notes, found_in, small_peer
from tests.daemon.tiny_run import GPT3, TINY_RUN
from tests.training.replicas_in_parts import cut_fine

IN_PARTS = '\n[update]\noptimizer_state = "parts"\n'


def test_a_founder_needs_room_for_all_and_a_joiner_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folder_in(tmp_path) as folder:
        member = folder.found(GPT3, more=IN_PARTS)
        held = member.replica.parts.held
        assert held.room == held.parts.count
        monkeypatch.setattr(building, "room_for", lambda *given: 0)
        joined = folder.enter(member)
        assert joined.replica.parts.held.room == 0
        assert joined.initialise()
        with pytest.raises(ShortageError, match="the founder is alone at first") as refused:
            folder.found(GPT3, name="c", more=IN_PARTS)
        assert "larger machine" in refused.value.hint


@pytest.mark.parametrize(
    ("precision", "state"), [("float32", "exact"), ("bfloat16", "exact"), ("bfloat16", "split")]
)
def test_of_eight_peers_each_allocates_what_a_plan_reckons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, state: str
) -> None:
    """A quarter of the moments, with one copy of each."""
    cut_fine(monkeypatch)
    with folder_in(tmp_path) as folder:
        model = f'{GPT3}\nprecision = "{precision}"'
        member = folder.found(model, more=f'state = "{state}"{IN_PARTS}')
        store, run = member.replica.engines.store, member.run
        held = member.replica.parts.held
        assert held.parts.count > 8
        each = most_held(run, store.layout, 8)
        assert each == -(-held.parts.count // 4)
        for part in sorted(held.held)[each:]:
            held.drop(part)
        kept = [*(a for part in held.held for a in held.of(part).values()), store.working]
        allocated = sum(arena.nbytes for arena in (*kept, store.gradients))
        reckoned = dict(replica_arenas(run, store.layout, each))
        del reckoned["averages, as they travel"]
        assert allocated == sum(reckoned.values())
        whole = dict(replica_arenas(run, store.layout))
        moments = [name for name in whole if name.startswith("optimizer's")]
        assert len(moments) == 2
        for name in moments:
            assert reckoned[name] / whole[name] == pytest.approx(1 / 4, rel=0.15)


def test_who_has_no_memory_left_beside_all_parts_has_room_for_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_fine(monkeypatch)
    monkeypatch.setattr(device_choice, "LEAST_HOST_BYTES", 0)
    model = GPT3.replace("layers = 2", "layers = 8").replace("model_dim = 16", "model_dim = 32")
    with folder_in(tmp_path) as folder:
        member = folder.found(model, more=IN_PARTS)
        run, parts = member.run, member.replica.parts.held.parts
        layout = member.replica.engines.store.layout
        all_bytes = peer_bytes(run, layout)
        monkeypatch.setattr(building, "free_host_bytes", lambda cap: all_bytes)
        held = folder.enter(member).replica.parts.held
        left_bytes = all_bytes - peer_bytes(run, layout, held.room)
        assert 0 < held.room < parts.count
        assert left_bytes > 0
        with pytest.raises(ShortageError, match="the founder is alone at first"):
            folder.found(model, name="c", more=IN_PARTS)


def test_a_founder_alone_holds_all_parts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_fine(monkeypatch)
    member = found_in(tmp_path, TINY_RUN.replace("[run]", "[run]\nrounds = 2") + IN_PARTS)
    count = member.replica.parts.held.parts.count
    with small_peer(tmp_path / "state", member, Notes()) as peer:
        assert peer.run() is Ending.ROUNDS_REACHED
        directory: Any = peer._directory
    told = directory.published[-1]
    assert (told.round, told.parts, told.holds) == (2, count, (1 << count) - 1)


@pytest.mark.parametrize(
    ("precision", "state"), [("float32", "exact"), ("bfloat16", "exact"), ("bfloat16", "half")]
)
def test_a_founder_alone_keeps_of_a_round_what_a_plan_reckons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, state: str
) -> None:
    """The means of all parts, and the weights that it made of them."""
    cut_fine(monkeypatch)
    text = TINY_RUN.replace("[run]", "[run]\nrounds = 2")
    text = text.replace("[model]", f'[model]\nprecision = "{precision}"')
    text += f'state = "{state}"{IN_PARTS}[swarm]\ncodec = "{precision}"\n'
    member, kept = found_in(tmp_path, text), list[int]()
    hold = PartsResults.hold

    def counted(results: PartsResults, digest: bytes, result: PartsResult) -> None:
        hold(results, digest, result)
        means = [mean.wires for mean in result.means.values()]
        kept.append(sum(arena.nbytes for arena in (*means, *result.loaded.values())))

    monkeypatch.setattr(PartsResults, "hold", counted)
    with small_peer(tmp_path / "state", member, Notes()) as peer:
        assert peer.run() is Ending.ROUNDS_REACHED
    layout = member.replica.engines.store.layout
    alone = most_held(member.run, layout, 1)
    assert kept == 2 * [result_bytes(member.run, layout, alone)]
    reckoned = dict(replica_arenas(member.run, layout, alone))
    assert reckoned["averages, as they travel"] == 2 * kept[0], "as of any peer, of two rounds"
