"""Swarms in which joiners have to earn their tenure: they work from the start, and vote later."""

from simulation import Setting, Swarm

from atom.swarm.chain.tenure import ROUNDS_TO_EARN

NEW_RUN = Setting(peers=1, all_trusted=False, global_batch=8, pass_seconds=(0.3,))


def grown(seed: int, joiners: int) -> Swarm:
    """Return a swarm whose founder and joiners all vote."""
    swarm = Swarm(seed, NEW_RUN)
    for _ in range(joiners):
        swarm.join()
    founder = swarm["A"]
    swarm.run_until(lambda: len(founder.chain.head.voters) == 1 + joiners, 300.0)
    return swarm


def test_joiners_work_first_and_vote_later_one_per_round() -> None:
    swarm = grown(3, joiners=3)
    chain = swarm["A"].chain
    for before, after in zip(chain.heads, chain.heads[1:], strict=False):
        new = {v.peer_id for v in after.voters} - {v.peer_id for v in before.voters}
        assert len(new) <= 1
        commits = [commit.value for commit in chain.commits[: after.round]]
        for peer in new:
            worked = sum(peer in {part.peer_id for part in each.contributions} for each in commits)
            assert worked > ROUNDS_TO_EARN
    assert swarm.witness.branches == 0


def test_the_run_outlives_its_founder_once_joiners_vote() -> None:
    swarm = grown(5, joiners=2)
    swarm["A"].die()
    swarm.run_until_agreed(60.0, 5)
    assert swarm.witness.branches == 0
