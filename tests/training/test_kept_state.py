"""What becomes of held parts around a step: what is lacking, damaged, given up, and begins anew."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atom.base.errors import StorageError
from atom.swarm.chain.commit import Ballot, MemberCount, PartHolder, Value, Voter
from atom.swarm.state.arenas import state_digest
from atom.training.kept_state import StateInParts
from atom.training.replica.replica import Replica
from atom.training.storage.parts_results import PartsResult, PartsResults
from atom.training.storage.run_storage import write_snapshot
from tests.swarm.chain_samples import PEERS
from tests.training.conftest import NewDevice
from tests.training.replicas_in_parts import EXACT, cut_fine, step_in_parts, three

MEMBERS = [Voter(peer, bytes(16)) for peer in PEERS[:3]]


class Kept(StateInParts):
    """With what it is about in reach."""

    def __init__(self, replica: Replica, me: Voter, folder: Path) -> None:
        held, live = replica.parts.held, lambda part: replica.parts.state(part)[0]
        self.results = PartsResults(folder, held, EXACT, live)
        self.replica, self.held = replica, held
        super().__init__(replica, self.results, me)

    def goes_on(self, result: PartsResult, value: Value) -> bytes:
        """As after a step on that result."""
        self.results.hold(result.digest, result)
        return self.settled(replace(value, result_digest=result.digest))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_fine(monkeypatch)


@pytest.fixture
def kept(new_device: NewDevice, tmp_path: Path) -> list[Kept]:
    return [
        Kept(replica, member, tmp_path / member.peer_id)
        for replica, member in zip(three(new_device), MEMBERS, strict=True)
    ]


def value_of(kept: list[Kept]) -> Value:
    """Everybody is to hold what it holds."""
    masks = [each.holds for each in kept]
    pairs = list(zip(MEMBERS, masks, strict=True))
    counts = tuple(MemberCount(m.peer_id, m.incarnation, 1, 1.0, mask) for m, mask in pairs)
    told = tuple(PartHolder(m.peer_id, mask) for m, mask in pairs)
    ballot = Ballot(1, MEMBERS[0].peer_id, bytes(16))
    state = b"s" * 32
    return Value(b"p" * 32, 1, ballot, b"", 1.0, state, counts, (MEMBERS[0],), (), told)


def mean_of(round: int, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(round))


def stepped(kept: list[Kept], round: int = 1) -> PartsResult:
    """What a peer has of the round that holds all, and shall hold nothing more."""
    replicas = [each.replica for each in kept]
    result = step_in_parts(replicas, mean_of(round, replicas[0].elements), round, torch.float32)
    for each in kept:
        each.replica.finish_step()
    return result


def test_all_stays_as_it_is(kept: list[Kept]) -> None:
    first = {each.digest() for each in kept}
    assert first == {state_digest(kept[0].replica.state_arenas())}
    value, before = value_of(kept), [each.holds for each in kept]
    for round in (1, 2):
        result = stepped(kept, round)
        assert {each.goes_on(result, value) for each in kept} == {result.digest}
    assert [each.holds for each in kept] == before


def test_damage_is_found(kept: list[Kept]) -> None:
    """A part of whose state some is damaged is held no more; weights that are give the state
    another name, as everybody is told."""
    value, result, peer = value_of(kept), stepped(kept), kept[1]
    part, other = sorted(peer.held.held)[:2]
    foreign = min(set(range(peer.held.parts.count)) - peer.held.held)
    peer.replica.parts.state(part)[1]["exp_avg"][5] += 1.0
    assert peer.goes_on(result, value) == result.digest
    assert part not in peer.held.held
    assert other in peer.held.held
    peer.replica.parts.state(foreign)[0][7] += 1.0
    assert peer.digest() != result.digest
    peer.load_result(result.digest, 1)
    assert peer.digest() == result.digest
    assert other in peer.held.held


def test_a_part_is_given_up_when_all_that_shall_hold_it_do(kept: list[Kept]) -> None:
    result, value, part = stepped(kept), value_of(kept), 0
    first, second, third = value.holders_next
    assert (first.parts & 1, second.parts & 1, third.parts & 1) == (1, 1, 0)
    told = replace(first, parts=first.parts & ~1), second, replace(third, parts=third.parts | 1)
    moving = replace(value, holders_next=told)
    kept[0].goes_on(result, moving)
    assert part in kept[0].held.held, "the third has it not yet"
    arenas = {name: each.clone() for name, each in kept[0].held.of(part).items()}
    kept[2].goes_on(replace(result, held={part: arenas}), moving)
    assert part in kept[2].held.held
    *others, last = moving.contributions
    moved = replace(moving, contributions=(*others, replace(last, holds=last.holds | 1)))
    kept[0].goes_on(result, moved)
    assert part not in kept[0].held.held


def test_a_part_whose_mean_is_nowhere_is_held_no_more(kept: list[Kept]) -> None:
    peer, result = kept[0], stepped(kept)
    part = min(peer.held.held)
    means = {each: mean for each, mean in result.means.items() if each != part}
    value = replace(value_of(kept), result_digest=result.digest)
    peer.results.hold(result.digest, replace(result, means=means))
    peer.ready(value)
    assert part not in peer.held.held
    peer.results.numbers(result.digest)[slice(*peer.held.parts.range(part))]


def test_a_snapshot_brings_back_what_was_held(kept: list[Kept], tmp_path: Path) -> None:
    """And a damaged one nothing."""
    value, result, peer = value_of(kept), stepped(kept), kept[1]
    named = peer.goes_on(result, value)
    held, before = peer.holds, {n: each.clone() for n, each in peer.held.of(1).items()}
    saved = write_snapshot(tmp_path, 1, b"h" * 32, *peer.saved(named))
    stepped(kept, 2)
    peer.load(saved, named)
    assert (peer.digest(), peer.holds, peer.replica.round) == (named, held, 1)
    assert all(torch.equal(peer.held.of(1)[name], each) for name, each in before.items())
    raw = bytearray(saved.path.read_bytes())
    raw[-1] ^= 1
    saved.path.write_bytes(raw)
    with pytest.raises(StorageError, match="damaged"):
        peer.load(saved, named)


def test_what_begins_anew_is_the_same_at_all_that_shall_hold_it(kept: list[Kept]) -> None:
    """Part 0 is gone. All make it of nothing, and step it; two keep it."""
    first = stepped(kept)
    for peer in kept:
        peer.results.hold(first.digest, first)
        if 0 in peer.held.held:
            peer.held.drop(0)
    value = replace(value_of(kept), renewed=1, result_digest=first.digest)
    one, two, three_ = value.holders_next
    told = one, replace(two, parts=two.parts | 1), replace(three_, parts=three_.parts | 1)
    counts = tuple(replace(m, holds=m.holds | 1) for m in value.contributions)
    value = replace(value, holders_next=told, contributions=counts)
    for peer in kept:
        peer.ready(value)
        loaded, held = peer.replica.parts.state(0)
        assert loaded.any()
        assert not any(arena.any() for arena in held.values())
    result = stepped(kept, 2)
    assert {peer.goes_on(result, value) for peer in kept} == {result.digest}
    assert [0 in peer.held.held for peer in kept] == [False, True, True]


def test_a_loaded_state_is_not_what_older_master_weights_say(
    new_device: NewDevice, tmp_path: Path
) -> None:
    """Of parts that are held no more, being of another state."""
    replicas = three(new_device, precision=torch.bfloat16)
    late = Kept(replicas[2], MEMBERS[2], tmp_path)
    result = step_in_parts(replicas[:2], mean_of(1, replicas[0].elements), 1, torch.bfloat16)
    replicas[0].finish_step()
    weights = [replicas[0].parts.state(p)[0].clone() for p in range(late.held.parts.count)]
    whole = replace(result, loaded=dict(enumerate(weights)))
    late.results.hold(result.digest, whole)
    late.load_result(result.digest, 1)
    assert late.digest() == result.digest
    assert not late.held.held
