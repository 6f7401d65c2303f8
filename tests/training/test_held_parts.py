"""What becomes of held parts around a step: what is lacking, damaged, given up, and begins anew."""

from dataclasses import replace

import pytest
import torch

from atom.optim.clipping import gradient_norm
from atom.swarm.chain.commit import Ballot, MemberCount, PartHolder, Value, Voter
from atom.training.held_parts import Damage, ready_for, settle
from atom.training.replica.replica import Replica
from atom.training.round.holders import mask_of
from atom.training.storage.parts_results import PartsResult
from tests.swarm.chain_samples import PEERS
from tests.training.conftest import NewDevice
from tests.training.replicas_in_parts import cut_fine, step_in_parts, three

MEMBERS = [Voter(peer, bytes(16)) for peer in PEERS[:3]]
WHOLE = Damage(frozenset(), frozenset())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_fine(monkeypatch)


@pytest.fixture
def replicas(new_device: NewDevice) -> list[Replica]:
    return three(new_device)


def value_of(replicas: list[Replica]) -> Value:
    """Everybody is to hold what it holds."""
    masks = [mask_of(each.parts.held.held) for each in replicas]
    pairs = list(zip(MEMBERS, masks, strict=True))
    counts = tuple(MemberCount(m.peer_id, m.incarnation, 1, 1.0, mask) for m, mask in pairs)
    told = tuple(PartHolder(m.peer_id, mask) for m, mask in pairs)
    ballot = Ballot(1, MEMBERS[0].peer_id, bytes(16))
    result, state = b"r" * 32, b"s" * 32
    return Value(b"p" * 32, 1, ballot, result, 1.0, state, counts, (MEMBERS[0],), (), told)


def mean_of(round: int, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(round))


def norm_of(round: int, elements: int) -> float:
    return gradient_norm(mean_of(round, elements))


def stepped(replicas: list[Replica], round: int = 1) -> PartsResult:
    mean = mean_of(round, replicas[0].elements)
    return step_in_parts(replicas, mean, round, torch.float32)


def test_all_stays_as_it_is(replicas: list[Replica]) -> None:
    value, result = value_of(replicas), stepped(replicas)
    before = [replica.parts.held.held for replica in replicas]
    for member, replica in zip(MEMBERS, replicas, strict=True):
        assert ready_for(replica, result, value) == {}
        assert settle(replica, result, value, member) == WHOLE
    assert [replica.parts.held.held for replica in replicas] == before


def test_damage_is_found_and_a_part_of_it_is_held_no_more(replicas: list[Replica]) -> None:
    value, result, replica = value_of(replicas), stepped(replicas), replicas[1]
    part, other = sorted(replica.parts.held.held)[:2]
    foreign = min(set(range(replica.parts.held.parts.count)) - replica.parts.held.held)
    replica.parts.state(part)[1]["exp_avg"][5] += 1.0
    replica.parts.state(foreign)[0][7] += 1.0
    damage = settle(replica, result, value, MEMBERS[1])
    assert damage == Damage(frozenset({part}), frozenset({foreign}))
    assert part not in replica.parts.held.held
    assert other in replica.parts.held.held


def test_a_part_is_given_up_when_all_that_shall_hold_it_do(replicas: list[Replica]) -> None:
    result, value, part = stepped(replicas), value_of(replicas), 0
    first, second, third = value.holders_next
    assert (first.parts & 1, second.parts & 1, third.parts & 1) == (1, 1, 0)
    told = replace(first, parts=first.parts & ~1), second, replace(third, parts=third.parts | 1)
    moving = replace(value, holders_next=told)
    settle(replicas[0], result, moving, MEMBERS[0])
    assert part in replicas[0].parts.held.held, "the third has it not yet"
    *others, last = moving.contributions
    moved = replace(moving, contributions=(*others, replace(last, holds=last.holds | 1)))
    settle(replicas[0], result, moved, MEMBERS[0])
    assert part not in replicas[0].parts.held.held


def test_a_part_whose_mean_is_nowhere_is_held_no_more(replicas: list[Replica]) -> None:
    """And then its weights are needed."""
    result, replica = stepped(replicas), replicas[0]
    part = min(replica.parts.held.held)
    means = {each: mean for each, mean in result.means.items() if each != part}
    loaded = {each: weights for each, weights in result.loaded.items() if each != part}
    some = PartsResult(result.rows, means, result.loaded)
    assert ready_for(replica, some, value_of(replicas)) == {}
    assert part not in replica.parts.held.held
    less = PartsResult(result.rows, means, loaded)
    assert ready_for(replica, less, value_of(replicas)).keys() == {part}


def test_what_begins_anew_is_the_same_at_all_that_shall_hold_it(replicas: list[Replica]) -> None:
    """Part 0 is gone. All make it of nothing, and step it; two keep it."""
    first = stepped(replicas)
    for replica in replicas:
        replica.finish_step()
        if 0 in replica.parts.held.held:
            replica.parts.held.drop(0)
    value = replace(value_of(replicas), renewed=1)
    one, two, three_ = value.holders_next
    told = one, replace(two, parts=two.parts | 1), replace(three_, parts=three_.parts | 1)
    value = replace(value, holders_next=told)
    for replica in replicas:
        assert ready_for(replica, first, value) == {}
        loaded, held = replica.parts.state(0)
        assert loaded.any()
        assert not any(arena.any() for arena in held.values())
    result = stepped(replicas, 2)
    for member, replica in zip(MEMBERS, replicas, strict=True):
        assert settle(replica, result, value, member) == WHOLE
    assert [0 in replica.parts.held.held for replica in replicas] == [False, True, True]
