"""Swarms with more peers than voters: those without a vote do most of the work."""

from simulation import Setting, Swarm


def crowd(peers: int, global_batch: int) -> Swarm:
    swarm = Swarm(3, Setting(peers, all_voters=False, global_batch=global_batch))
    while len(swarm["A"].machine.head.voters) < 9:
        swarm.run_until_agreed(30.0, 1)
    return swarm


def kill_most_voters(swarm: Swarm) -> None:
    for voter in swarm["A"].machine.head.voters[:5]:
        process = swarm.process_of(voter.peer_id)
        assert process is not None
        process.die()


def test_a_branch_gathers_the_work_of_all() -> None:
    """Nine survivors vote. Alone they train no whole batch: the others count on each other."""
    swarm = crowd(24, global_batch=192)
    kill_most_voters(swarm)
    swarm.run_until_agreed(40.0)
    assert swarm.witness.branches >= 1
    branch = next(c for c in swarm.living[0].chain.commits if c.survivors)
    assert len(branch.value.contributions) == 19


def test_newcomers_do_not_hold_up_a_branch() -> None:
    """They cannot tell yet who is gone: nobody asks them, so a stream of them stops nothing."""
    swarm = crowd(10, global_batch=40)
    kill_most_voters(swarm)
    before = swarm.living[0].chain.head.round
    for _ in range(20):
        swarm.run(1.0)
        swarm.join()
    assert swarm.living[0].chain.head.round > before + 1
    assert swarm.witness.branches >= 1
