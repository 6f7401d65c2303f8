"""One that had a part in a round opens a branch of its own: nobody follows."""

from simulated_forger import forge
from simulated_peer import Process
from simulation import Setting, Swarm

VOTERS = Setting(peers=5, pass_seconds=(0.5,))


def honest_part(swarm: Swarm, liar: Process) -> list[Process]:
    return [process for process in swarm.living if process is not liar]


def follows(process: Process, forged: bytes) -> bool:
    return any(head.digest == forged for head in process.chain.heads)


def test_a_voter_s_own_branch_is_left_to_it() -> None:
    swarm = Swarm(5, VOTERS)
    swarm.run_until_agreed(60.0, 1)
    liar = swarm.living[1]
    opened = len(liar.chain.heads)
    forged = forge(liar).heads[opened].digest
    before = max(process.chain.head.round for process in honest_part(swarm, liar))
    for _ in range(60):
        swarm.run(1.0)
        assert not any(follows(p, forged) for p in honest_part(swarm, liar)), swarm.story(60)
    after = min(process.chain.head.round for process in honest_part(swarm, liar))
    assert after >= before + 5, swarm.story(60)


def test_a_joiner_ends_where_the_voters_are() -> None:
    swarm = Swarm(6, VOTERS)
    swarm.run_until_agreed(60.0, 1)
    liar = swarm.living[1]
    opened = len(liar.chain.heads)
    forged = forge(liar).heads[opened].digest
    joiner = swarm.join()
    swarm.run(30.0)
    assert not follows(joiner, forged)
    tips = [process.chain.head.round for process in honest_part(swarm, liar)]
    assert joiner.chain.head.round >= max(tips) - 1, swarm.story(60)


def test_survivors_who_are_more_than_it_open_their_own() -> None:
    """Four of seven voters are gone. Of the three that are left, two hold out together."""
    swarm = Swarm(7, Setting(peers=7, pass_seconds=(0.5,)))
    swarm.run_until_agreed(60.0, 1)
    liar, *honest = swarm.living[:3]
    for process in swarm.living[3:]:
        process.die()
    opened = len(liar.chain.heads)
    forged = forge(liar).heads[opened].digest
    swarm.run(60.0)
    assert len({process.chain.head.digest for process in honest}) == 1, swarm.story(60)
    assert not follows(honest[0], forged), swarm.story(60)
    assert len(honest[0].chain.heads) > opened + 2, "and rounds go on"
    assert len(honest[0].chain.head.branches) == 1


def test_who_was_cut_off_comes_back_to_a_quorum_whatever_it_counted() -> None:
    """The smaller part is the faster: it has trained on more, and gives it up."""
    swarm = Swarm(8, Setting(peers=5, pass_seconds=(0.2, 0.2, 2.0, 2.0, 2.0)))
    swarm.run_until_agreed(60.0, 1)
    swarm.cut("AB", "CDE")
    swarm.hide("AB", "CDE")
    swarm.run(120.0)
    fast, slow = swarm["A"].chain.head, swarm["C"].chain.head
    assert fast.work > slow.work
    assert fast.branches
    assert not slow.branches
    swarm.heal()
    swarm.run_until_agreed(60.0)
    assert slow in swarm["A"].chain.heads
