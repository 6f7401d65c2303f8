"""When a round is due, what it lacks, and what is one peer's own of it."""

from atom.training.round.batch_policy import GlobalBatch


def test_global_batch_is_due_when_the_counts_reach_it() -> None:
    policy = GlobalBatch(10)
    assert not policy.is_due(9)
    assert policy.is_due(10)
    assert (policy.missing(4), policy.missing(12)) == (6, 0)
    assert [policy.share(peers) for peers in (0, 1, 3)] == [10, 10, 4]
