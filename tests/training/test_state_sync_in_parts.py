"""Catching up where the optimizer's state is in parts: what is loaded comes from anybody, and who
missed little goes on holding what it held."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from atom.optim.clipping import gradient_norm
from atom.swarm.exchange.encoded import EncodedMean
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from atom.training.storage.parts_results import PartsResult
from tests.swarm.chain_samples import a_commit, beginning, voter_of
from tests.swarm.local_transport import LocalNetwork
from tests.swarm.means import encoded
from tests.training.conftest import NewDevice
from tests.training.peer_in_parts import Peer
from tests.training.replicas_in_parts import cut_fine, step_in_parts, three
from tests.training.small_replica import filled, program

FOUNDER, OTHER = Identity.create(), Identity.create()


def mean_of(number: int, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(number))


class Story:
    """Three peers of two holders a part, and rounds of the first two."""

    def __init__(self, replicas: list[Replica], folder: Path) -> None:
        self.network = LocalNetwork()
        self.first = beginning(FOUNDER, state_digest(replicas[0].state_arenas()))
        self.peers = [self.peer(each, folder / str(n)) for n, each in enumerate(replicas)]

    def peer(self, replica: Replica, folder: Path) -> Peer:
        return Peer(replica, self.network, folder, self.first, voter_of(OTHER))

    def round(self, number: int, peers: list[Peer]) -> None:
        """Each keeps of the result what it needs of it; a part's owner is the first that
        holds it."""
        elements = peers[0].replica.elements
        mean = mean_of(number, elements)
        state = peers[0].kept.digest()
        result = step_in_parts([p.replica for p in peers], mean, number, torch.float32)
        commit = a_commit(
            peers[0].journal.head, {FOUNDER: 1}, [FOUNDER], result_digest=result.digest,
            gradient_norm=gradient_norm(mean), parent_state_digest=state,
        )  # fmt: skip
        owned = set[int]()
        for peer in peers:
            held = peer.held.held
            means: dict[int, EncodedMean] = {p: m for p, m in result.means.items() if p in held}
            loaded = {p: w for p, w in result.loaded.items() if p not in held or p not in owned}
            owned |= held
            peer.results.hold(result.digest, PartsResult(result.rows, means, loaded))
            peer.storage.record(commit)
            peer.replica.finish_step()
            assert peer.kept.settled(commit.value) == result.digest
            peer.results.keep(frozenset())

    def donors(self) -> list[str]:
        return [peer.peer_id for peer in self.peers[:2]]

    def is_at_the_head(self, peer: Peer) -> bool:
        """With the weights of the others, and of what it holds the state."""
        leader = self.peers[0]
        [ours, theirs] = [each.replica.state_arenas()["master"] for each in (peer, leader)]
        return (
            peer.journal.head == leader.journal.head
            and peer.kept.digest() == leader.kept.digest()
            and torch.equal(ours, theirs)
        )


@pytest.fixture
def story(
    new_device: NewDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Story]:
    cut_fine(monkeypatch)
    made = Story(three(new_device), tmp_path)
    yield made
    made.network.close()


def test_a_joiner_loads_what_the_last_table_names(
    story: Story, new_device: NewDevice, tmp_path: Path
) -> None:
    for number in (1, 2):
        story.round(number, story.peers)
    joiner = story.peer(filled(new_device(), program(), in_parts=True), tmp_path / "joiner")
    assert joiner.sync.usable
    joiner.journal.replace([], [story.first])
    for number in (3, 4):
        story.round(number, story.peers)
    assert joiner.sync.run(story.donors(), discard=False) == ""
    assert story.is_at_the_head(joiner)
    assert joiner.replica.round == 4
    assert not joiner.held.held


def test_who_missed_little_goes_on_holding_what_it_held(story: Story) -> None:
    """Who missed more does not: others have it, and give it in an exchange."""
    late = story.peers[2]
    story.round(1, story.peers)
    held = late.held.held
    for number in (2, 3):
        story.round(number, story.peers[:2])
    assert late.sync.run(story.donors(), discard=False) == ""
    assert story.is_at_the_head(late)
    assert late.held.held == held
    for number in (4, 5, 6, 7):
        story.round(number, story.peers[:2])
    assert late.sync.run(story.donors(), discard=False) == ""
    assert story.is_at_the_head(late)
    assert not late.held.held


def after_a_power_cut(story: Story, new_device: NewDevice, tmp_path: Path) -> Peer:
    """The third peer, which has the means of round 2 and knows nothing else of it; others decided
    that."""
    *others, late = story.peers
    story.round(1, story.peers)
    late.storage.snapshot(*late.kept.saved(late.kept.digest()))
    mean = mean_of(2, late.replica.elements)
    parts = [encoded(mean[slice(*late.held.parts.range(part))]) for part in late.held.held]
    late.results.keep_means({state_digest(each.arenas): each for each in parts})
    story.round(2, others)
    return story.peer(filled(new_device(), program(), in_parts=True), tmp_path / "2")


def test_who_knows_nothing_of_a_round_has_its_means_after_a_power_cut(
    story: Story, new_device: NewDevice, tmp_path: Path
) -> None:
    """One peer went on with it, and that holds other parts."""
    back, one = after_a_power_cut(story, new_device, tmp_path), story.peers[0]
    assert back.journal.head.round == 1
    assert back.sync.run([one.peer_id], discard=False) == ""
    assert story.is_at_the_head(back)
    assert back.held.held == story.peers[2].held.held
    assert back.held.held - one.held.held


def test_who_leaves_a_branch_holds_what_it_held_where_it_began(
    story: Story, new_device: NewDevice, tmp_path: Path
) -> None:
    """All restarted, and the one that had committed came last."""
    back, one = after_a_power_cut(story, new_device, tmp_path), story.peers[0]
    twins = three(new_device)
    step_in_parts(twins, mean_of(1, back.replica.elements), 1, torch.float32)
    result = step_in_parts(twins, mean_of(9, back.replica.elements), 2, torch.float32)
    branch = a_commit(
        back.journal.head, {FOUNDER: 1}, [FOUNDER], survivors=[FOUNDER],
        result_digest=result.digest, gradient_norm=1.0,
    )  # fmt: skip
    back.results.hold(result.digest, result)
    decided = back.results.numbers(result.digest)
    back.storage.record(branch)
    back.replica.begin_step(decided, gradient_norm(mean_of(9, back.replica.elements)), 2)
    back.replica.reset_gradients()
    back.replica.finish_step()
    assert back.kept.settled(branch.value) == result.digest
    back.results.keep(frozenset())
    back.storage.snapshot(*back.kept.saved(back.kept.digest()))
    assert back.sync.run([one.peer_id], discard=False) == ""
    assert story.is_at_the_head(back)
    assert back.held.held == story.peers[2].held.held


def test_damaged_weights_are_fetched_and_what_is_held_stays(story: Story) -> None:
    for number in (1, 2):
        story.round(number, story.peers)
    peer = story.peers[2]
    held = peer.held.held
    peer.replica.state_arenas()["master"][7] += 1.0
    assert not story.is_at_the_head(peer)
    assert peer.sync.run(story.donors(), discard=True) == ""
    assert story.is_at_the_head(peer)
    assert peer.held.held == held
