"""Another rule for when a round is due is one class: a swarm plays by it."""

from dataclasses import dataclass

from simulation import Setting, Swarm

from atom.training.round.batch_policy import GlobalBatch

WITHOUT_END = 2**20


@dataclass(frozen=True)
class EverySeconds:
    """A round is due every `seconds`, if anybody counted. Everybody trains until then."""

    seconds: int

    def is_due(self, sequences: int, elapsed_s: float) -> bool:
        return sequences > 0 and elapsed_s >= self.seconds

    def missing(self, sequences: int) -> int:
        return WITHOUT_END

    def share(self, peers: int) -> int:
        return WITHOUT_END


def test_global_batch_is_due_when_the_counts_reach_it() -> None:
    policy = GlobalBatch(10)
    assert not policy.is_due(9, 1e9)
    assert policy.is_due(10, 0.0)
    assert (policy.missing(4), policy.missing(12)) == (6, 0)
    assert [policy.share(peers) for peers in (0, 1, 3)] == [10, 10, 4]


def test_every_seconds_is_a_policy_like_any_other() -> None:
    setting = Setting(peers=3, policy=EverySeconds, global_batch=5, pass_seconds=(0.5, 1.0, 2.0))
    swarm = Swarm(3, setting)
    swarm.run(5.0)
    assert swarm.witness.rounds == 0, "not before the time"
    swarm.run(70.0)
    commits = swarm.living[0].chain.commits
    assert 6 <= len(commits) <= 14, "five seconds, and what deciding takes"
    assert all(len(commit.value.contributions) == 3 for commit in commits[1:])
    counts = {part.peer_id: part.sequences for part in commits[-1].value.contributions}
    slow, quick = swarm["C"].peer_id, swarm["A"].peer_id
    assert counts[slow] < counts[quick], "each gives what it has"
